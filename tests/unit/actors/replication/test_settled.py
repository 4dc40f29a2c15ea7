"""Who waits for replicas in sync is answered when they have it, once, and by the rule that holds then."""

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
class Waiting:
    """A master, number 1, with one replica in sync that has connected."""

    min_in_sync: int = 1
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.lease = MasterLease(self.clock)
        self.lease.given(self.lease.ask(), 100.0)
        self.in_sync = InSyncSet(1, {1, 2}, BEGIN, self.clock)
        self.in_sync.connected(2, 1, BEGIN, "n")
        policy = ReplicationPolicy("sync", self.min_in_sync)
        self.settled = PendingAcks(AckRule(policy, self.in_sync, self.lease, 1), self.clock)

    def append(self, offset: int) -> asyncio.Task[SendStatus]:
        self.in_sync.appended(at(offset), at(offset))
        return asyncio.ensure_future(self.settled.wait(at(offset)))

    def acknowledge(self, offset: int) -> None:
        self.in_sync.acknowledged(2, 1, at(offset))
        self.settled.advance(self.in_sync.confirmed)


async def test_each_is_answered_when_its_own_end_is_there() -> None:
    bench = Waiting()
    first, second = bench.append(10), bench.append(20)
    await asyncio.sleep(0)
    bench.acknowledge(10)
    assert await first is SendStatus.SEND_OK
    await asyncio.sleep(0)
    assert not second.done()
    bench.acknowledge(20)
    assert await second is SendStatus.SEND_OK
    assert len(bench.settled) == 0


async def test_what_nobody_has_in_time_is_called_so() -> None:
    bench = Waiting()
    waits = bench.append(10)
    await asyncio.sleep(0)
    bench.clock.now += SLAVE_SECONDS - 0.1
    bench.settled.sweep()
    await asyncio.sleep(0)
    assert not waits.done()
    bench.clock.now += 0.2
    bench.settled.sweep()
    assert await waits is SendStatus.FLUSH_SLAVE_TIMEOUT


async def test_with_too_few_left_it_is_not_safe_though_all_who_are_left_have_it() -> None:
    bench = Waiting(min_in_sync=2)
    waits = bench.append(10)
    await asyncio.sleep(0)
    bench.in_sync.committed({1}, {})
    bench.settled.wake_all()
    await asyncio.sleep(0)
    assert not waits.done()
    bench.clock.now += SLAVE_SECONDS
    bench.settled.sweep()
    assert await waits is SendStatus.SLAVE_NOT_AVAILABLE


async def test_trap_30_an_acknowledgement_after_the_lease_says_nothing() -> None:
    bench = Waiting()
    waits = bench.append(10)
    await asyncio.sleep(0)
    bench.clock.now += 200.0
    bench.acknowledge(10)
    with pytest.raises(WriteUnknown):
        await waits


async def test_who_leaves_office_says_so_at_once() -> None:
    bench = Waiting()
    waits = [bench.append(10), bench.append(20)]
    await asyncio.sleep(0)
    bench.lease.revoke()
    bench.settled.wake_all()
    for each in waits:
        with pytest.raises(WriteUnknown):
            await each


async def test_one_who_has_gone_is_in_nobodys_way() -> None:
    bench = Waiting()
    gone, stays = bench.append(10), bench.append(20)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    bench.acknowledge(20)
    assert await stays is SendStatus.SEND_OK
