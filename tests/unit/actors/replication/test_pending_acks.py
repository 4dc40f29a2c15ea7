"""Test that each pending ack is answered once, when the in-sync replicas have its message."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from raymq.actors.broker.replica.pending_acks import SLAVE_SECONDS, PendingAcks
from raymq.actors.broker.replication.ack_rule import AckRule
from raymq.actors.broker.replication.in_sync_set import InSyncSet
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import WriteUnknown
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.keeper.master_lease import MasterLease
from raymq.actors.protocol import SendStatus
from tests.unit.actors.clock import FakeClock


def at(offset: int) -> StreamPosition:
    return StreamPosition(offset, 0)


@dataclass
class PendingAcksBench:
    """Run master 1 with one connected replica in sync."""

    min_in_sync: int = 1
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.lease = MasterLease(self.clock)
        self.lease.given(self.lease.ask(), 100.0)
        self.in_sync = InSyncSet(1, {1, 2}, BEGIN, self.clock)
        self.in_sync.connected(2, 1, BEGIN, "n")
        policy = ReplicationPolicy("sync", self.min_in_sync)
        self.pending = PendingAcks(AckRule(policy, self.in_sync, self.lease, 1), self.clock)

    def append(self, offset: int) -> asyncio.Task[SendStatus]:
        self.in_sync.appended(at(offset), at(offset))
        return asyncio.ensure_future(self.pending.wait(at(offset)))

    def acknowledge(self, offset: int) -> None:
        self.in_sync.acknowledged(2, 1, at(offset))
        self.pending.advance(self.in_sync.confirmed)


async def test_each_ack_resolves_at_its_position() -> None:
    bench = PendingAcksBench()
    first, second = bench.append(10), bench.append(20)
    await asyncio.sleep(0)
    bench.acknowledge(10)
    assert await first is SendStatus.SEND_OK
    await asyncio.sleep(0)
    assert not second.done()
    bench.acknowledge(20)
    assert await second is SendStatus.SEND_OK
    assert len(bench.pending) == 0


async def test_ack_timeout_returns_flush_slave_timeout() -> None:
    bench = PendingAcksBench()
    waits = bench.append(10)
    await asyncio.sleep(0)
    bench.clock.now += SLAVE_SECONDS - 0.1
    bench.pending.sweep()
    await asyncio.sleep(0)
    assert not waits.done()
    bench.clock.now += 0.2
    bench.pending.sweep()
    assert await waits is SendStatus.FLUSH_SLAVE_TIMEOUT


async def test_too_few_in_sync_returns_slave_not_available() -> None:
    bench = PendingAcksBench(min_in_sync=2)
    waits = bench.append(10)
    await asyncio.sleep(0)
    bench.in_sync.committed({1}, {})
    bench.pending.wake_all()
    await asyncio.sleep(0)
    assert not waits.done()
    bench.clock.now += SLAVE_SECONDS
    bench.pending.sweep()
    assert await waits is SendStatus.SLAVE_NOT_AVAILABLE


async def test_ack_after_lease_expiry_raises_write_unknown() -> None:
    bench = PendingAcksBench()
    waits = bench.append(10)
    await asyncio.sleep(0)
    bench.clock.now += 200.0
    bench.acknowledge(10)
    with pytest.raises(WriteUnknown):
        await waits


async def test_revoked_lease_fails_pending_acks_at_once() -> None:
    bench = PendingAcksBench()
    waits = [bench.append(10), bench.append(20)]
    await asyncio.sleep(0)
    bench.lease.revoke()
    bench.pending.wake_all()
    for each in waits:
        with pytest.raises(WriteUnknown):
            await each


async def test_cancelled_waiter_does_not_block_others() -> None:
    bench = PendingAcksBench()
    gone, stays = bench.append(10), bench.append(20)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    bench.acknowledge(20)
    assert await stays is SendStatus.SEND_OK
