"""A rolling restart's decisions by what is seen: replicas first, a master after it has handed over, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.elastic.change_steps import RestartReplica, TransferMaster, WaitStep
from raymq.cluster.elastic.observed_groups import ObservedGroup, ObservedReplica
from raymq.cluster.elastic.rolling_restart import FORCE_SECONDS, RollingRestartPlanner, dry_run_steps
from raymq.cluster.elastic.stall_timeout import STALL_TIMEOUT_SECONDS


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def one(name: str = "broker-a", pid: int | None = 1) -> ObservedGroup:
    return ObservedGroup(name, {0: ObservedReplica(name, 0, pid, is_master=pid is not None)})


def two(
    pids: tuple[int | None, int | None] = (1, 2), master: int = 0, in_sync: tuple[int, ...] = (0, 1)
) -> ObservedGroup:
    replicas = {
        n: ObservedReplica("broker-a", n, pid, is_master=n == master, lag_bytes=0) for n, pid in enumerate(pids)
    }
    return ObservedGroup("broker-a", replicas, frozenset(in_sync))


def seen(*groups: ObservedGroup) -> dict[str, ObservedGroup]:
    return {each.name: each for each in groups}


def test_replicas_come_first_and_a_master_hands_over_before() -> None:
    plan = RollingRestartPlanner(["broker-a", "broker-a.1"], Clock())
    assert plan.next(seen(two())) == RestartReplica("broker-a.1")
    assert plan.next(seen(two())) == WaitStep("broker-a.1 has to stop")
    assert plan.next(seen(two((1, None)))) == WaitStep("broker-a.1 does not answer")
    assert plan.next(seen(two((1, 3), in_sync=(0,)))) == WaitStep("broker-a.1 is not in sync")
    assert plan.left == ["broker-a.1", "broker-a"]
    assert plan.next(seen(two((1, 3)))) == TransferMaster("broker-a", 1)
    assert (plan.done, plan.left) == (["broker-a.1"], ["broker-a"])
    assert plan.next(seen(two((1, 3), master=1))) == RestartReplica("broker-a")
    assert plan.next(seen(two((4, 3), master=1))) is None
    assert (plan.done, plan.left) == (["broker-a.1", "broker-a"], [])


def test_a_master_that_was_elected_meanwhile_is_handed_over_too() -> None:
    plan = RollingRestartPlanner(["broker-a", "broker-a.1"], Clock())
    assert plan.next(seen(two(master=1))) == RestartReplica("broker-a")
    assert plan.next(seen(two((3, 2), master=1))) == TransferMaster("broker-a", 0)


def test_brokers_of_one_copy_are_restarted_one_after_the_other() -> None:
    plan = RollingRestartPlanner(["broker-a", "broker-b"], Clock())
    assert plan.next(seen(one(), one("broker-b", 2))) == RestartReplica("broker-a")
    assert isinstance(plan.next(seen(one(pid=None), one("broker-b", 2))), WaitStep)
    assert plan.next(seen(one(pid=5), one("broker-b", 2))) == RestartReplica("broker-b")


def test_nothing_is_begun_in_a_group_that_is_not_whole() -> None:
    clock = Clock()
    plan = RollingRestartPlanner(["broker-a", "broker-a.1"], clock)
    assert plan.next(seen(two((1, None)))) == WaitStep("broker-a.1 does not answer")
    clock.now = STALL_TIMEOUT_SECONDS
    with pytest.raises(BrokerUnavailable, match=r"not restarted: broker-a, broker-a\.1"):
        plan.next(seen(two((1, None))))


def test_one_that_does_not_stop_is_killed_once() -> None:
    clock = Clock()
    plan = RollingRestartPlanner(["broker-a"], clock)
    plan.next(seen(one()))
    clock.now = FORCE_SECONDS
    assert plan.next(seen(one())) == RestartReplica("broker-a", by_force=True)
    assert plan.next(seen(one())) == WaitStep("broker-a has to stop")


def test_one_that_does_not_come_back_ends_it_and_says_who_is_left() -> None:
    clock = Clock()
    plan = RollingRestartPlanner(["broker-a", "broker-b"], clock)
    plan.next(seen(one(), one("broker-b", 2)))
    plan.next(seen(one(pid=None), one("broker-b", 2)))
    clock.now = STALL_TIMEOUT_SECONDS
    with pytest.raises(BrokerUnavailable, match="not restarted: broker-a, broker-b"):
        plan.next(seen(one(pid=None), one("broker-b", 2)))


def test_a_handover_that_never_comes_about_ends_it() -> None:
    plan = RollingRestartPlanner(["broker-a"], Clock())
    for _ in range(3):
        assert plan.next(seen(two())) == TransferMaster("broker-a", 1)
    with pytest.raises(BrokerUnavailable, match="has not been handed over"):
        plan.next(seen(two()))


def test_a_rehearsal_tells_every_step() -> None:
    groups = seen(two((1, None)), one("broker-b"))
    assert dry_run_steps(["broker-a", "broker-a.1", "broker-b"], groups) == [
        "waits: broker-a.1 does not answer",
        "restarts broker-a.1",
        "hands broker-a over to broker-a.1",
        "restarts broker-a",
        "restarts broker-b",
    ]
    assert groups["broker-a"] == replace(two(), replicas=two((1, None)).replicas), "nothing was changed"
