"""Test the in-sync set, the confirmed position, and when a message may be acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.broker.replication.ack_rule import NOT_MASTER, TOO_FEW, AckOutcome, AckRule
from raymq.actors.broker.replication.in_sync_set import LAG_SECONDS, InSyncSet
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.keeper.master_lease import LEASE_SECONDS, MasterLease
from raymq.actors.protocol import SendStatus
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants


def position_at(offset: int, sequence: int = 0) -> StreamPosition:
    return StreamPosition(offset, sequence)


NONCES = {number: f"n{number}" for number in (1, 2, 3)}


class Bench:
    """Hold master 1 at offset 100 with its lease; other members follow from there."""

    def __init__(self, *members: int) -> None:
        self.clock = FakeClock()
        self.made = InSyncSet(1, members, position_at(100), self.clock, confirmed=BEGIN)
        for number in members:
            if number != 1:
                self.made.connected(number, number * 10, position_at(100), f"n{number}")
                self.ack(number, position_at(100))
        self.lease = MasterLease(self.clock)
        self.renew()

    def renew(self) -> None:
        self.lease.given(self.lease.ask(), LEASE_SECONDS)

    def rule(self, mode: str = "sync", min_in_sync: int = 1) -> AckRule:
        return AckRule(ReplicationPolicy(mode, min_in_sync), self.made, self.lease, 1)

    def append(self, end: StreamPosition) -> None:
        self.made.appended(end, end)

    def ack(self, replica: int, position: StreamPosition) -> bool:
        return self.made.acknowledged(replica, replica * 10, position)

    def pass_seconds(self, seconds: float, *alive: int) -> frozenset[int] | None:
        """Advance the clock in small steps, while these replicas answer heartbeats with what they have."""
        desired = None
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            for number in alive:
                self.ack(number, self.made.acknowledged_by(number) or BEGIN)
            desired = self.made.desired() or desired
        return desired


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(1, 2, 3)
    yield made
    check_invariants(made.made)


def test_confirmed_position_is_minimum_of_all_members(bench: Bench) -> None:
    assert bench.made.confirmed == position_at(100)
    bench.append(position_at(300, 7))
    assert bench.made.confirmed == position_at(100)
    assert not bench.ack(2, position_at(250, 7))
    assert bench.ack(3, position_at(300, 5))
    assert bench.made.confirmed == position_at(250, 5)
    assert bench.ack(2, position_at(300, 7))
    assert bench.made.confirmed == position_at(300, 5)
    bench.ack(3, position_at(300, 7))
    assert bench.made.confirmed == position_at(300, 7)


def test_single_member_set_confirms_at_once() -> None:
    alone = Bench(1)
    alone.append(position_at(200, 1))
    assert alone.made.confirmed == position_at(200, 1)
    assert alone.pass_seconds(60) is None


def test_sync_flush_confirms_only_flushed_master_log() -> None:
    """Guard against calling a message durable before the fsync."""
    alone = Bench(1)
    alone.made.appended(position_at(200), position_at(150))
    assert alone.made.confirmed == position_at(150)
    assert alone.rule("sync").outcome(position_at(200)) is AckOutcome.WAIT
    assert alone.rule("async").outcome(position_at(200)) is AckOutcome.WAIT
    alone.made.appended(position_at(200), position_at(200))
    assert alone.rule("async").outcome(position_at(200)) is AckOutcome.SAFE


def test_ack_beyond_log_end_raises_protocol_error(bench: Bench) -> None:
    bench.append(position_at(200, 3))
    for position in (position_at(201, 3), position_at(200, 4), position_at(-1, 0)):
        with pytest.raises(ProtocolError):
            bench.ack(2, position)
        with pytest.raises(ProtocolError):
            bench.made.connected(2, 21, position, "n2")
    with pytest.raises(ProtocolError):
        bench.made.connected(1, 5, position_at(100), "n1")
    assert bench.made.confirmed == position_at(100)


def test_two_connections_count_as_one_replica() -> None:
    bench = Bench(1, 2, 3)
    bench.append(position_at(200))
    bench.made.connected(2, 21, position_at(100), "n2")
    assert bench.made.acknowledged(2, 21, position_at(200)) is False
    assert bench.made.acknowledged(2, 20, position_at(200)) is False, "nor does the connection before count"
    assert bench.made.confirmed == position_at(100), "replica 3 has nothing of it"


def test_late_ack_of_older_connection_is_ignored() -> None:
    bench = Bench(1, 2)
    bench.append(position_at(200))
    bench.ack(2, position_at(200))
    bench.append(position_at(300))
    bench.made.connected(2, 21, position_at(150), "n2")
    bench.made.disconnected(2, 20)
    assert bench.made.acknowledged(2, 20, position_at(300)) is False
    assert bench.made.acknowledged_by(2) == position_at(150)
    assert bench.made.confirmed == position_at(200), "it never goes back"


def test_hanging_member_is_removed_within_3_seconds(bench: Bench) -> None:
    bench.append(position_at(200))
    bench.ack(2, position_at(200))
    assert bench.pass_seconds(2.0, 2) is None
    assert bench.pass_seconds(1.0, 2) == {1, 2}
    assert 2.0 <= LAG_SECONDS <= 3.0
    bench.made.propose({1, 2})
    assert bench.made.confirmed == position_at(100), "not before the register has answered"
    assert bench.pass_seconds(1.0, 2) is None, "one change at a time"
    bench.made.committed({1, 2}, NONCES)
    assert bench.made.confirmed == position_at(200)
    bench.append(position_at(300))
    bench.ack(2, position_at(300))
    assert bench.made.confirmed == position_at(300), "nobody waits for the dead one again"


def test_silent_idle_member_is_removed(bench: Bench) -> None:
    assert bench.pass_seconds(3.0, 2) == {1, 2}


def test_permanently_lagging_member_is_removed(bench: Bench) -> None:
    desired = None
    for step in range(40):
        bench.append(position_at(100 + 100 * (step + 1)))
        bench.ack(2, position_at(100 + 100 * (step + 1)))
        bench.ack(3, position_at(100 + 10 * step))
        bench.clock.advance(0.1)
        desired = bench.made.desired() or desired
    assert desired == {1, 2}


def test_slightly_lagging_member_stays(bench: Bench) -> None:
    for step in range(40):
        bench.append(position_at(100 + 100 * (step + 1)))
        bench.ack(2, position_at(100 + 100 * step))
        bench.ack(3, position_at(100 + 100 * max(step - 5, 0)))
        bench.clock.advance(0.1)
        assert bench.made.desired() is None


def test_resumed_master_removes_no_member_at_once(bench: Bench) -> None:
    bench.made.desired()
    bench.clock.advance(60)
    assert bench.made.desired() is None
    assert bench.pass_seconds(3.0, 2, 3) is None
    assert bench.pass_seconds(3.0, 2) == {1, 2}


def test_replica_joins_set_after_catching_up() -> None:
    bench = Bench(1, 2)
    bench.append(position_at(500))
    bench.ack(2, position_at(500))
    bench.made.connected(3, 30, position_at(0), "n3")
    assert bench.pass_seconds(1.0, 2, 3) is None
    bench.ack(3, position_at(499))
    assert bench.pass_seconds(0.1, 2) is None, "it lacks what is confirmed"
    bench.ack(3, position_at(500))
    assert bench.pass_seconds(0.1, 2, 3) == {1, 2, 3}


def test_disconnected_replica_does_not_join_set() -> None:
    bench = Bench(1)
    bench.made.connected(3, 30, position_at(100), "n3")
    bench.ack(3, position_at(100))
    bench.made.disconnected(3, 30)
    assert bench.pass_seconds(0.5) is None


def test_new_member_counts_while_set_grows() -> None:
    bench = Bench(1)
    bench.made.connected(2, 20, position_at(100), "n2")
    assert bench.made.desired() is None, "where it is says nothing of what is on its disk"
    bench.ack(2, position_at(100))
    desired = bench.made.desired()
    assert desired == {1, 2}
    bench.made.propose(desired)
    bench.append(position_at(200))
    assert bench.made.confirmed == position_at(100), "the register may have it in the set by now"
    assert bench.rule().outcome(position_at(200)) is AckOutcome.WAIT
    bench.ack(2, position_at(200))
    assert bench.rule().outcome(position_at(200)) is AckOutcome.SAFE
    bench.made.committed({1}, NONCES)
    bench.append(position_at(300))
    assert bench.made.confirmed == position_at(300), "it was not taken in"


def test_leaving_member_counts_while_set_shrinks(bench: Bench) -> None:
    bench.append(position_at(200))
    bench.ack(2, position_at(200))
    bench.made.propose({1, 2})
    assert bench.made.required == {1, 2, 3}
    assert bench.made.confirmed == position_at(100)
    bench.made.committed({1, 2, 3}, NONCES)
    assert bench.made.confirmed == position_at(100), "the register has kept it"


def test_unconnected_member_holds_back_confirmed_position() -> None:
    clock = FakeClock()
    made = InSyncSet(1, {1, 2}, position_at(100), clock, confirmed=position_at(60))
    made.appended(position_at(200), position_at(200))
    assert made.confirmed == position_at(60)
    for _ in range(30):
        clock.advance(0.1)
        desired = made.desired()
    assert desired == {1}
    assert made.lag() == {2: position_at(200)}


def test_connecting_acknowledges_nothing() -> None:
    """Cover a replica with sync flush that returns after a failed fsync.

    Its stream is longer than what is on its disk.
    """
    bench = Bench(1, 2)
    bench.append(position_at(200))
    bench.made.connected(2, 21, position_at(200), "n2")
    assert bench.made.confirmed == position_at(100)
    assert bench.made.acknowledged_by(2) == position_at(100), "what it had acknowledged before, it has"
    assert bench.made.acknowledged(2, 21, position_at(200))
    assert bench.made.confirmed == position_at(200)


def test_reset_replica_leaves_set_and_may_rejoin(bench: Bench) -> None:
    bench.made.reset_replica(2)
    assert bench.made.desired() == {1, 3}
    bench.append(position_at(110))
    bench.ack(3, position_at(110))
    assert bench.made.confirmed == position_at(100), "it counts as long as it is in the set, with nothing"
    bench.made.propose({1, 3})
    assert 2 in bench.made.required
    bench.made.committed({1, 3}, NONCES)
    assert bench.made.confirmed == position_at(110)
    assert bench.made.desired() is None
    bench.made.connected(2, 21, position_at(110), NONCES[2])
    assert bench.made.desired() is None
    bench.made.acknowledged(2, 21, position_at(110))
    assert bench.made.desired() == {1, 2, 3}


def test_acks_of_former_process_do_not_count() -> None:
    """Cover a replica whose machine failed.

    The replica left the set with its claim, and has lost what it had acknowledged.
    """
    bench = Bench(1, 2)
    bench.append(position_at(200))
    bench.ack(2, position_at(200))
    bench.made.committed({1}, NONCES | {2: "again"})
    assert bench.made.desired() is None
    assert bench.made.acknowledged_by(2) is None
    bench.made.connected(2, 21, position_at(50), "again")
    bench.made.acknowledged(2, 21, position_at(50))
    assert bench.made.desired() is None
    bench.made.acknowledged(2, 21, position_at(200))
    assert bench.made.desired() == {1, 2}


# When a message may be acknowledged.


def test_async_does_not_wait_and_sync_waits_for_all(bench: Bench) -> None:
    bench.append(position_at(200))
    assert bench.rule("async").outcome(position_at(200)) is AckOutcome.SAFE
    assert bench.rule("sync").outcome(position_at(200)) is AckOutcome.WAIT
    bench.ack(2, position_at(200))
    assert bench.rule("sync").outcome(position_at(200)) is AckOutcome.WAIT
    bench.ack(3, position_at(200))
    assert bench.rule("sync").outcome(position_at(200)) is AckOutcome.SAFE
    assert bench.rule("sync").timed_out() is SendStatus.FLUSH_SLAVE_TIMEOUT


def test_too_few_in_sync_replicas_refuse_write() -> None:
    alone = Bench(1)
    assert alone.rule("sync", 2).refusal() == TOO_FEW == "in-sync replicas not enough"
    assert alone.rule("async", 2).refusal() is None
    assert alone.rule("sync", 1).refusal() is None


def test_shrinking_set_does_not_make_waiting_message_safe() -> None:
    bench = Bench(1, 2)
    rule = bench.rule("sync", 2)
    bench.append(position_at(200))
    bench.made.propose({1})
    assert rule.refusal() == TOO_FEW, "it may be too small by now"
    bench.made.committed({1}, NONCES)
    assert bench.made.confirmed == position_at(200)
    assert rule.outcome(position_at(200)) is AckOutcome.WAIT
    assert rule.timed_out() is SendStatus.SLAVE_NOT_AVAILABLE


def test_isolated_master_confirms_nothing(bench: Bench) -> None:
    rule = bench.rule("sync")
    bench.append(position_at(200))
    bench.pass_seconds(LEASE_SECONDS)
    assert rule.refusal() == NOT_MASTER
    bench.made.propose({1})
    assert bench.made.confirmed == position_at(100), "the register that it cannot reach still has the others in the set"
    assert rule.outcome(position_at(200)) is AckOutcome.UNKNOWN


def test_expired_lease_makes_outcome_unknown() -> None:
    bench = Bench(1)
    rule = bench.rule("async")
    assert rule.refusal() is None
    bench.append(position_at(200))
    assert rule.outcome(position_at(200)) is AckOutcome.SAFE
    bench.clock.advance(5)  # SIGSTOP, then SIGCONT; the acks of replicas are still in the socket
    assert rule.outcome(position_at(200)) is AckOutcome.UNKNOWN
    bench.renew()
    assert rule.outcome(position_at(200)) is AckOutcome.SAFE


def test_master_with_slow_disk_is_lagging(bench: Bench) -> None:
    assert bench.pass_seconds(2 * LAG_SECONDS, 2, 3) is None
    assert not bench.made.is_master_lagging
    for end in range(200, 320, 5):  # the disk is always slightly behind
        bench.made.appended(position_at(end), position_at(end - 5))
        bench.pass_seconds(0.2, 2, 3)
        assert not bench.made.is_master_lagging
    bench.pass_seconds(LAG_SECONDS - 0.3, 2, 3)
    assert not bench.made.is_master_lagging
    bench.pass_seconds(0.5, 2, 3)
    assert bench.made.is_master_lagging
    bench.made.appended(position_at(315), position_at(315))
    bench.pass_seconds(0.1, 2, 3)
    assert not bench.made.is_master_lagging
    bench.made.appended(position_at(400), position_at(315))
    bench.clock.advance(60.0)  # the process was stopped, which does not make its disk slow
    bench.made.desired()
    assert not bench.made.is_master_lagging
