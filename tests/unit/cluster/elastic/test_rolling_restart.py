"""Test the planner of rolling restarts: one broker at a time, replicas first, masters after a handover."""

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


def single_broker(name: str = "broker-a", pid: int | None = 1) -> ObservedGroup:
    return ObservedGroup(name, {0: ObservedReplica(name, 0, pid, is_master=pid is not None)})


def two_replicas(
    pids: tuple[int | None, int | None] = (1, 2), master: int = 0, in_sync: tuple[int, ...] = (0, 1)
) -> ObservedGroup:
    replicas = {
        n: ObservedReplica("broker-a", n, pid, is_master=n == master, lag_bytes=0) for n, pid in enumerate(pids)
    }
    return ObservedGroup("broker-a", replicas, frozenset(in_sync))


def groups_by_name(*groups: ObservedGroup) -> dict[str, ObservedGroup]:
    return {each.name: each for each in groups}


def test_replicas_restart_first_and_the_master_hands_over() -> None:
    plan = RollingRestartPlanner(["broker-a", "broker-a.1"], Clock())
    assert plan.next(groups_by_name(two_replicas())) == RestartReplica("broker-a.1")
    assert plan.next(groups_by_name(two_replicas())) == WaitStep("broker-a.1 has to stop")
    assert plan.next(groups_by_name(two_replicas((1, None)))) == WaitStep("broker-a.1 does not answer")
    assert plan.next(groups_by_name(two_replicas((1, 3), in_sync=(0,)))) == WaitStep("broker-a.1 is not in sync")
    assert plan.left == ["broker-a.1", "broker-a"]
    assert plan.next(groups_by_name(two_replicas((1, 3)))) == TransferMaster("broker-a", 1)
    assert (plan.done, plan.left) == (["broker-a.1"], ["broker-a"])
    assert plan.next(groups_by_name(two_replicas((1, 3), master=1))) == RestartReplica("broker-a")
    assert plan.next(groups_by_name(two_replicas((4, 3), master=1))) is None
    assert (plan.done, plan.left) == (["broker-a.1", "broker-a"], [])


def test_newly_elected_master_hands_over_too() -> None:
    plan = RollingRestartPlanner(["broker-a", "broker-a.1"], Clock())
    assert plan.next(groups_by_name(two_replicas(master=1))) == RestartReplica("broker-a")
    assert plan.next(groups_by_name(two_replicas((3, 2), master=1))) == TransferMaster("broker-a", 0)


def test_unreplicated_brokers_restart_one_at_a_time() -> None:
    plan = RollingRestartPlanner(["broker-a", "broker-b"], Clock())
    assert plan.next(groups_by_name(single_broker(), single_broker("broker-b", 2))) == RestartReplica("broker-a")
    assert isinstance(plan.next(groups_by_name(single_broker(pid=None), single_broker("broker-b", 2))), WaitStep)
    assert plan.next(groups_by_name(single_broker(pid=5), single_broker("broker-b", 2))) == RestartReplica("broker-b")


def test_degraded_group_is_not_restarted() -> None:
    clock = Clock()
    plan = RollingRestartPlanner(["broker-a", "broker-a.1"], clock)
    assert plan.next(groups_by_name(two_replicas((1, None)))) == WaitStep("broker-a.1 does not answer")
    clock.now = STALL_TIMEOUT_SECONDS
    with pytest.raises(BrokerUnavailable, match=r"not restarted: broker-a, broker-a\.1"):
        plan.next(groups_by_name(two_replicas((1, None))))


def test_broker_that_does_not_stop_is_killed_once() -> None:
    clock = Clock()
    plan = RollingRestartPlanner(["broker-a"], clock)
    plan.next(groups_by_name(single_broker()))
    clock.now = FORCE_SECONDS
    assert plan.next(groups_by_name(single_broker())) == RestartReplica("broker-a", by_force=True)
    assert plan.next(groups_by_name(single_broker())) == WaitStep("broker-a has to stop")


def test_broker_that_does_not_return_ends_the_restart() -> None:
    clock = Clock()
    plan = RollingRestartPlanner(["broker-a", "broker-b"], clock)
    plan.next(groups_by_name(single_broker(), single_broker("broker-b", 2)))
    plan.next(groups_by_name(single_broker(pid=None), single_broker("broker-b", 2)))
    clock.now = STALL_TIMEOUT_SECONDS
    with pytest.raises(BrokerUnavailable, match="not restarted: broker-a, broker-b"):
        plan.next(groups_by_name(single_broker(pid=None), single_broker("broker-b", 2)))


def test_restart_fails_after_three_failed_handovers() -> None:
    plan = RollingRestartPlanner(["broker-a"], Clock())
    for _ in range(3):
        assert plan.next(groups_by_name(two_replicas())) == TransferMaster("broker-a", 1)
    with pytest.raises(BrokerUnavailable, match="has not been handed over"):
        plan.next(groups_by_name(two_replicas()))


def test_dry_run_lists_every_step() -> None:
    groups = groups_by_name(two_replicas((1, None)), single_broker("broker-b"))
    assert dry_run_steps(["broker-a", "broker-a.1", "broker-b"], groups) == [
        "waits: broker-a.1 does not answer",
        "restarts broker-a.1",
        "hands broker-a over to broker-a.1",
        "restarts broker-a",
        "restarts broker-b",
    ]
    assert groups["broker-a"] == replace(two_replicas(), replicas=two_replicas((1, None)).replicas), (
        "nothing was changed"
    )
