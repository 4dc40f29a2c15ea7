"""The set in sync and the confirmed position; when a message may be acknowledged. The traps that they are about."""

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


def at(offset: int, sequence: int = 0) -> StreamPosition:
    return StreamPosition(offset, sequence)


NONCES = {number: f"n{number}" for number in (1, 2, 3)}


class Bench:
    """The master 1 of a group, at 100, with its lease; whoever is in the set follows from there."""

    def __init__(self, *members: int) -> None:
        self.clock = FakeClock()
        self.made = InSyncSet(1, members, at(100), self.clock, confirmed=BEGIN)
        for number in members:
            if number != 1:
                self.made.connected(number, number * 10, at(100), f"n{number}")
                self.ack(number, at(100))
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
        """Time passes in small steps, in which these replicas answer heartbeats with what they have."""
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
    made.made.validate()


def test_confirmed_is_what_every_member_has_number_by_number(bench: Bench) -> None:
    assert bench.made.confirmed == at(100)
    bench.append(at(300, 7))
    assert bench.made.confirmed == at(100)
    assert not bench.ack(2, at(250, 7))
    assert bench.ack(3, at(300, 5))
    assert bench.made.confirmed == at(250, 5)
    assert bench.ack(2, at(300, 7))
    assert bench.made.confirmed == at(300, 5)
    bench.ack(3, at(300, 7))
    assert bench.made.confirmed == at(300, 7)


def test_a_set_of_the_master_alone_confirms_at_once() -> None:
    alone = Bench(1)
    alone.append(at(200, 1))
    assert alone.made.confirmed == at(200, 1)
    assert alone.pass_seconds(60) is None


def test_with_sync_flush_the_masters_own_share_is_what_is_on_disk() -> None:
    """Trap 22: acknowledged before the fsync, and called durable."""
    alone = Bench(1)
    alone.made.appended(at(200), at(150))
    assert alone.made.confirmed == at(150)
    assert alone.rule("sync").outcome(at(200)) is AckOutcome.WAIT
    assert alone.rule("async").outcome(at(200)) is AckOutcome.WAIT
    alone.made.appended(at(200), at(200))
    assert alone.rule("async").outcome(at(200)) is AckOutcome.SAFE


def test_trap_15_nobody_acknowledges_more_than_there_is(bench: Bench) -> None:
    bench.append(at(200, 3))
    for position in (at(201, 3), at(200, 4), at(-1, 0)):
        with pytest.raises(ProtocolError):
            bench.ack(2, position)
        with pytest.raises(ProtocolError):
            bench.made.connected(2, 21, position, "n2")
    with pytest.raises(ProtocolError):
        bench.made.connected(1, 5, at(100), "n1")
    assert bench.made.confirmed == at(100)


def test_trap_16_two_connections_of_one_replica_are_one_replica() -> None:
    bench = Bench(1, 2, 3)
    bench.append(at(200))
    bench.made.connected(2, 21, at(100), "n2")
    assert bench.made.acknowledged(2, 21, at(200)) is False
    assert bench.made.acknowledged(2, 20, at(200)) is False, "nor does the connection before count"
    assert bench.made.confirmed == at(100), "replica 3 has nothing of it"


def test_what_an_older_connection_says_late_is_not_believed() -> None:
    bench = Bench(1, 2)
    bench.append(at(200))
    bench.ack(2, at(200))
    bench.append(at(300))
    bench.made.connected(2, 21, at(150), "n2")
    bench.made.disconnected(2, 20)
    assert bench.made.acknowledged(2, 20, at(300)) is False
    assert bench.made.acknowledged_by(2) == at(150)
    assert bench.made.confirmed == at(200), "it never goes back"


def test_trap_18_a_member_that_hangs_is_put_out_in_2_to_3_seconds_and_waited_for_once(bench: Bench) -> None:
    bench.append(at(200))
    bench.ack(2, at(200))
    assert bench.pass_seconds(2.0, 2) is None
    assert bench.pass_seconds(1.0, 2) == {1, 2}
    assert 2.0 <= LAG_SECONDS <= 3.0
    bench.made.propose({1, 2})
    assert bench.made.confirmed == at(100), "not before the register has answered"
    assert bench.pass_seconds(1.0, 2) is None, "one change at a time"
    bench.made.committed({1, 2}, NONCES)
    assert bench.made.confirmed == at(200)
    bench.append(at(300))
    bench.ack(2, at(300))
    assert bench.made.confirmed == at(300), "nobody waits for the dead one again"


def test_a_member_that_is_idle_and_silent_is_put_out_too(bench: Bench) -> None:
    assert bench.pass_seconds(3.0, 2) == {1, 2}


def test_a_slow_member_that_goes_on_is_put_out_if_it_is_always_behind(bench: Bench) -> None:
    desired = None
    for step in range(40):
        bench.append(at(100 + 100 * (step + 1)))
        bench.ack(2, at(100 + 100 * (step + 1)))
        bench.ack(3, at(100 + 10 * step))
        bench.clock.advance(0.1)
        desired = bench.made.desired() or desired
    assert desired == {1, 2}


def test_a_member_that_is_behind_by_less_stays(bench: Bench) -> None:
    for step in range(40):
        bench.append(at(100 + 100 * (step + 1)))
        bench.ack(2, at(100 + 100 * step))
        bench.ack(3, at(100 + 100 * max(step - 5, 0)))
        bench.clock.advance(0.1)
        assert bench.made.desired() is None


def test_a_master_that_was_stopped_blames_nobody(bench: Bench) -> None:
    bench.made.desired()
    bench.clock.advance(60)
    assert bench.made.desired() is None
    assert bench.pass_seconds(3.0, 2, 3) is None
    assert bench.pass_seconds(3.0, 2) == {1, 2}


def test_a_replica_comes_in_when_it_has_caught_up() -> None:
    bench = Bench(1, 2)
    bench.append(at(500))
    bench.ack(2, at(500))
    bench.made.connected(3, 30, at(0), "n3")
    assert bench.pass_seconds(1.0, 2, 3) is None
    bench.ack(3, at(499))
    assert bench.pass_seconds(0.1, 2) is None, "it lacks what is confirmed"
    bench.ack(3, at(500))
    assert bench.pass_seconds(0.1, 2, 3) == {1, 2, 3}


def test_who_is_not_connected_does_not_come_in() -> None:
    bench = Bench(1)
    bench.made.connected(3, 30, at(100), "n3")
    bench.ack(3, at(100))
    bench.made.disconnected(3, 30)
    assert bench.pass_seconds(0.5) is None


def test_trap_5_while_the_set_grows_the_new_member_counts_already() -> None:
    bench = Bench(1)
    bench.made.connected(2, 20, at(100), "n2")
    assert bench.made.desired() is None, "where it is says nothing of what is on its disk"
    bench.ack(2, at(100))
    desired = bench.made.desired()
    assert desired == {1, 2}
    bench.made.propose(desired)
    bench.append(at(200))
    assert bench.made.confirmed == at(100), "the register may have it in the set by now"
    assert bench.rule().outcome(at(200)) is AckOutcome.WAIT
    bench.ack(2, at(200))
    assert bench.rule().outcome(at(200)) is AckOutcome.SAFE
    bench.made.committed({1}, NONCES)
    bench.append(at(300))
    assert bench.made.confirmed == at(300), "it was not taken in"


def test_while_the_set_shrinks_the_leaving_member_still_counts(bench: Bench) -> None:
    bench.append(at(200))
    bench.ack(2, at(200))
    bench.made.propose({1, 2})
    assert bench.made.required == {1, 2, 3}
    assert bench.made.confirmed == at(100)
    bench.made.committed({1, 2, 3}, NONCES)
    assert bench.made.confirmed == at(100), "the register has kept it"


def test_a_member_that_never_connected_in_this_epoch_holds_what_is_confirmed() -> None:
    clock = FakeClock()
    made = InSyncSet(1, {1, 2}, at(100), clock, confirmed=at(60))
    made.appended(at(200), at(200))
    assert made.confirmed == at(60)
    for _ in range(30):
        clock.advance(0.1)
        desired = made.desired()
    assert desired == {1}
    assert made.lag() == {2: at(200)}


def test_who_connects_has_acknowledged_nothing_by_that() -> None:
    """With sync flush a replica whose fsync has failed comes back with a stream that is not on its disk."""
    bench = Bench(1, 2)
    bench.append(at(200))
    bench.made.connected(2, 21, at(200), "n2")
    assert bench.made.confirmed == at(100)
    assert bench.made.acknowledged_by(2) == at(100), "what it had acknowledged before, it has"
    assert bench.made.acknowledged(2, 21, at(200))
    assert bench.made.confirmed == at(200)


def test_who_is_about_to_drop_what_it_has_leaves_the_set_at_once_and_comes_back_as_any_other(bench: Bench) -> None:
    bench.made.reset_replica(2)
    assert bench.made.desired() == {1, 3}
    bench.append(at(110))
    bench.ack(3, at(110))
    assert bench.made.confirmed == at(100), "it counts as long as it is in the set, with nothing"
    bench.made.propose({1, 3})
    assert 2 in bench.made.required
    bench.made.committed({1, 3}, NONCES)
    assert bench.made.confirmed == at(110)
    assert bench.made.desired() is None
    bench.made.connected(2, 21, at(110), NONCES[2])
    assert bench.made.desired() is None
    bench.made.acknowledged(2, 21, at(110))
    assert bench.made.desired() == {1, 2, 3}


def test_what_an_earlier_process_of_a_replica_has_acknowledged_takes_it_into_no_set() -> None:
    """Its machine went down: it left the set with its claim, and has nothing of what it had acknowledged."""
    bench = Bench(1, 2)
    bench.append(at(200))
    bench.ack(2, at(200))
    bench.made.committed({1}, NONCES | {2: "again"})
    assert bench.made.desired() is None
    assert bench.made.acknowledged_by(2) is None
    bench.made.connected(2, 21, at(50), "again")
    bench.made.acknowledged(2, 21, at(50))
    assert bench.made.desired() is None
    bench.made.acknowledged(2, 21, at(200))
    assert bench.made.desired() == {1, 2}


# When a message may be acknowledged.


def test_async_waits_for_nobody_and_sync_for_all(bench: Bench) -> None:
    bench.append(at(200))
    assert bench.rule("async").outcome(at(200)) is AckOutcome.SAFE
    assert bench.rule("sync").outcome(at(200)) is AckOutcome.WAIT
    bench.ack(2, at(200))
    assert bench.rule("sync").outcome(at(200)) is AckOutcome.WAIT
    bench.ack(3, at(200))
    assert bench.rule("sync").outcome(at(200)) is AckOutcome.SAFE
    assert bench.rule("sync").timed_out() is SendStatus.FLUSH_SLAVE_TIMEOUT


def test_too_few_in_sync_are_refused_before_a_byte_is_written() -> None:
    alone = Bench(1)
    assert alone.rule("sync", 2).refusal() == TOO_FEW == "in-sync replicas not enough"
    assert alone.rule("async", 2).refusal() is None
    assert alone.rule("sync", 1).refusal() is None


def test_a_set_that_shrinks_while_a_message_waits_does_not_make_it_safe() -> None:
    bench = Bench(1, 2)
    rule = bench.rule("sync", 2)
    bench.append(at(200))
    bench.made.propose({1})
    assert rule.refusal() == TOO_FEW, "it may be too small by now"
    bench.made.committed({1}, NONCES)
    assert bench.made.confirmed == at(200)
    assert rule.outcome(at(200)) is AckOutcome.WAIT
    assert rule.timed_out() is SendStatus.SLAVE_NOT_AVAILABLE


def test_trap_4_an_isolated_master_confirms_nothing_for_itself(bench: Bench) -> None:
    rule = bench.rule("sync")
    bench.append(at(200))
    bench.pass_seconds(LEASE_SECONDS)
    assert rule.refusal() == NOT_MASTER
    bench.made.propose({1})
    assert bench.made.confirmed == at(100), "the register that it cannot reach still has the others in the set"
    assert rule.outcome(at(200)) is AckOutcome.UNKNOWN


def test_trap_30_the_lease_is_looked_at_after_the_last_await() -> None:
    bench = Bench(1)
    rule = bench.rule("async")
    assert rule.refusal() is None
    bench.append(at(200))
    assert rule.outcome(at(200)) is AckOutcome.SAFE
    bench.clock.advance(5)  # SIGSTOP, SIGCONT; the acknowledgements of replicas lie in the socket
    assert rule.outcome(at(200)) is AckOutcome.UNKNOWN
    bench.renew()
    assert rule.outcome(at(200)) is AckOutcome.SAFE


def test_a_master_whose_disk_does_not_do_its_share_is_late_like_any_member(bench: Bench) -> None:
    assert bench.pass_seconds(2 * LAG_SECONDS, 2, 3) is None
    assert not bench.made.is_master_lagging
    for end in range(200, 320, 5):  # its disk is always a little behind
        bench.made.appended(at(end), at(end - 5))
        bench.pass_seconds(0.2, 2, 3)
        assert not bench.made.is_master_lagging
    bench.pass_seconds(LAG_SECONDS - 0.3, 2, 3)
    assert not bench.made.is_master_lagging
    bench.pass_seconds(0.5, 2, 3)
    assert bench.made.is_master_lagging
    bench.made.appended(at(315), at(315))
    bench.pass_seconds(0.1, 2, 3)
    assert not bench.made.is_master_lagging
    bench.made.appended(at(400), at(315))
    bench.clock.advance(60.0)  # the process was stopped: its disk is not to blame
    bench.made.desired()
    assert not bench.made.is_master_lagging
