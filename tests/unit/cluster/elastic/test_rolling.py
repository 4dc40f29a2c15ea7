"""A rolling restart's decisions by what is seen: replicas first, a master after it has handed over, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.elastic.patience import PATIENCE_SECONDS
from raymq.cluster.elastic.rolling import FORCE_SECONDS, RollingRestart, rehearsed
from raymq.cluster.elastic.seen import GroupSeen, ReplicaSeen
from raymq.cluster.elastic.steps import HandOver, Restart, Wait


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def one(name: str = "broker-a", pid: int | None = 1) -> GroupSeen:
    return GroupSeen(name, {0: ReplicaSeen(name, 0, pid, is_master=pid is not None)})


def two(pids: tuple[int | None, int | None] = (1, 2), master: int = 0, in_sync: tuple[int, ...] = (0, 1)) -> GroupSeen:
    replicas = {n: ReplicaSeen("broker-a", n, pid, is_master=n == master, lag_bytes=0) for n, pid in enumerate(pids)}
    return GroupSeen("broker-a", replicas, frozenset(in_sync))


def seen(*groups: GroupSeen) -> dict[str, GroupSeen]:
    return {each.name: each for each in groups}


def test_replicas_come_first_and_a_master_hands_over_before() -> None:
    plan = RollingRestart(["broker-a", "broker-a.1"], Clock())
    assert plan.next(seen(two())) == Restart("broker-a.1")
    assert plan.next(seen(two())) == Wait("broker-a.1 is to stop")
    assert plan.next(seen(two((1, None)))) == Wait("broker-a.1 does not answer")
    assert plan.next(seen(two((1, 3), in_sync=(0,)))) == Wait("broker-a.1 is not in sync")
    assert plan.left == ["broker-a.1", "broker-a"]
    assert plan.next(seen(two((1, 3)))) == HandOver("broker-a", 1)
    assert (plan.done, plan.left) == (["broker-a.1"], ["broker-a"])
    assert plan.next(seen(two((1, 3), master=1))) == Restart("broker-a")
    assert plan.next(seen(two((4, 3), master=1))) is None
    assert (plan.done, plan.left) == (["broker-a.1", "broker-a"], [])


def test_a_master_that_was_elected_meanwhile_is_handed_over_too() -> None:
    plan = RollingRestart(["broker-a", "broker-a.1"], Clock())
    assert plan.next(seen(two(master=1))) == Restart("broker-a")
    assert plan.next(seen(two((3, 2), master=1))) == HandOver("broker-a", 0)


def test_brokers_of_one_copy_are_restarted_one_after_the_other() -> None:
    plan = RollingRestart(["broker-a", "broker-b"], Clock())
    assert plan.next(seen(one(), one("broker-b", 2))) == Restart("broker-a")
    assert isinstance(plan.next(seen(one(pid=None), one("broker-b", 2))), Wait)
    assert plan.next(seen(one(pid=5), one("broker-b", 2))) == Restart("broker-b")


def test_nothing_is_begun_in_a_group_that_is_not_whole() -> None:
    clock = Clock()
    plan = RollingRestart(["broker-a", "broker-a.1"], clock)
    assert plan.next(seen(two((1, None)))) == Wait("broker-a.1 does not answer")
    clock.now = PATIENCE_SECONDS
    with pytest.raises(BrokerUnavailable, match=r"left are broker-a, broker-a\.1"):
        plan.next(seen(two((1, None))))


def test_one_that_does_not_stop_is_killed_once() -> None:
    clock = Clock()
    plan = RollingRestart(["broker-a"], clock)
    plan.next(seen(one()))
    clock.now = FORCE_SECONDS
    assert plan.next(seen(one())) == Restart("broker-a", by_force=True)
    assert plan.next(seen(one())) == Wait("broker-a is to stop")


def test_one_that_does_not_come_back_ends_it_and_says_who_is_left() -> None:
    clock = Clock()
    plan = RollingRestart(["broker-a", "broker-b"], clock)
    plan.next(seen(one(), one("broker-b", 2)))
    plan.next(seen(one(pid=None), one("broker-b", 2)))
    clock.now = PATIENCE_SECONDS
    with pytest.raises(BrokerUnavailable, match="left are broker-a, broker-b"):
        plan.next(seen(one(pid=None), one("broker-b", 2)))


def test_a_handover_that_never_comes_about_ends_it() -> None:
    plan = RollingRestart(["broker-a"], Clock())
    for _ in range(3):
        assert plan.next(seen(two())) == HandOver("broker-a", 1)
    with pytest.raises(BrokerUnavailable, match="has not been handed over"):
        plan.next(seen(two()))


def test_a_rehearsal_tells_every_step() -> None:
    groups = seen(two((1, None)), one("broker-b"))
    assert rehearsed(["broker-a", "broker-a.1", "broker-b"], groups) == [
        "waits: broker-a.1 does not answer",
        "restarts broker-a.1",
        "hands broker-a over to broker-a.1",
        "restarts broker-a",
        "restarts broker-b",
    ]
    assert groups["broker-a"] == replace(two(), replicas=two((1, None)).replicas), "nothing was changed"
