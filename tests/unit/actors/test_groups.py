"""Membership of consumer groups, and parked fetches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.core.groups import GRACE_SECONDS, SILENCE_SECONDS, GroupTable
from raymq.actors.core.long_poll import LongPolls
from raymq.actors.errors import GroupNotFound, SubscriptionMismatch
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def groups(clock: FakeClock) -> Iterator[GroupTable]:
    made = GroupTable(clock)
    yield made
    made.validate()


@pytest.fixture
def polls(clock: FakeClock) -> Iterator[LongPolls]:
    made = LongPolls(clock)
    yield made
    made.validate()


def test_members_are_told_apart_by_client_id(groups: GroupTable) -> None:
    assert groups.heartbeat("g", "x", {"t": "*"}, "c1")
    assert groups.heartbeat("g", "y", {"t": "*"}, "c2")
    assert not groups.heartbeat("g", "x", {"t": "*"}, "c1")
    assert groups.members("g") == ["x", "y"]
    assert set(groups.connections("g")) == {"c1", "c2"}


def test_a_closed_connection_ends_membership_after_the_grace_time(groups: GroupTable, clock: FakeClock) -> None:
    groups.heartbeat("g", "x", {"t": "*"}, "c1")
    groups.connection_closed("c1")
    clock.advance(GRACE_SECONDS - 0.1)
    assert groups.expire() == set()
    assert groups.members("g") == ["x"]
    clock.advance(0.2)
    assert groups.expire() == {"g"}
    with pytest.raises(GroupNotFound):
        groups.members("g")


def test_a_client_that_comes_back_in_time_stays(groups: GroupTable, clock: FakeClock) -> None:
    groups.heartbeat("g", "x", {"t": "*"}, "c1")
    groups.connection_closed("c1")
    clock.advance(GRACE_SECONDS - 0.1)
    assert not groups.heartbeat("g", "x", {"t": "*"}, "c2")
    clock.advance(GRACE_SECONDS)
    assert groups.expire() == set()


def test_a_silent_member_goes(groups: GroupTable, clock: FakeClock) -> None:
    groups.heartbeat("g", "x", {"t": "*"}, "c1")
    clock.advance(SILENCE_SECONDS)
    assert groups.expire() == {"g"}


def test_unregistering_ends_membership_at_once(groups: GroupTable) -> None:
    groups.heartbeat("g", "x", {"t": "*"}, "c1")
    assert groups.unregister("g", "x")
    assert not groups.unregister("g", "x")


def test_another_subscription_is_refused_naming_both(groups: GroupTable) -> None:
    groups.heartbeat("g", "x", {"t": "paid"}, "c1")
    with pytest.raises(SubscriptionMismatch, match=r"y subscribes to t \[shipped\].*x subscribes to t \[paid\]"):
        groups.heartbeat("g", "y", {"t": "shipped"}, "c2")
    assert groups.members("g") == ["x"]


def test_the_last_member_may_change_its_subscription(groups: GroupTable) -> None:
    groups.heartbeat("g", "x", {"t": "paid"}, "c1")
    groups.heartbeat("g", "x", {"t": "shipped"}, "c1")
    groups.connection_closed("c1")
    assert groups.heartbeat("g", "y", {"t": "other"}, "c2")


def test_an_arrival_wakes_who_waits_for_that_queue(polls: LongPolls) -> None:
    woken: list[str] = []
    polls.park("s1", [("t", 0), ("t", 1)], 15.0, lambda: woken.append("s1"))
    polls.park("s2", [("t", 2)], 15.0, lambda: woken.append("s2"))
    polls.arrived([("t", 1), ("t", 0), ("u", 0)])
    assert woken == ["s1"]
    assert len(polls) == 1


def test_the_deadline_wakes(polls: LongPolls, clock: FakeClock) -> None:
    woken: list[str] = []
    polls.park("s1", [("t", 0)], 15.0, lambda: woken.append("s1"))
    clock.advance(14.9)
    polls.expire()
    assert woken == []
    clock.advance(0.2)
    polls.expire()
    assert woken == ["s1"]


def test_a_newer_fetch_of_the_session_ends_the_older_one(polls: LongPolls) -> None:
    woken: list[int] = []
    polls.park("s", [("t", 0)], 15.0, lambda: woken.append(1))
    second = polls.park("s", [("t", 1)], 15.0, lambda: woken.append(2))
    assert woken == [1]
    polls.arrived([("t", 0)])
    assert woken == [1]
    polls.remove(second)
    polls.remove(second)
    assert woken == [1]
    assert len(polls) == 0
