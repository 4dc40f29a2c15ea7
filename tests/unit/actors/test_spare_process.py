"""When a broker lets Ray start an idle process, and which of a node's brokers does."""

from __future__ import annotations

import itertools
import os

import pytest

from raymq.actors.spare_process import (
    SPARE_PROCESS,
    RespawnPolicy,
    SpareProcess,
    WorkerProcess,
    is_spare,
    is_spare_enabled,
    is_spare_owner,
    was_reused,
)
from tests.unit.actors.clock import FakeClock

SERVER, IDLE, FIRST, SECOND = (
    WorkerProcess(11, "ray::NameServer"),
    WorkerProcess(12, "ray::IDLE"),
    WorkerProcess(13, "ray::Broker"),
    WorkerProcess(14, "ray::Broker.status"),
)


@pytest.mark.parametrize("order", list(itertools.permutations((SERVER, IDLE, FIRST, SECOND))))
def test_of_the_brokers_of_a_node_one_keeps_a_spare(order: tuple[WorkerProcess, ...]) -> None:
    assert [pid for pid in (13, 14) if is_spare_owner(pid, order)] == [13]


def test_a_broker_that_sees_no_broker_keeps_a_spare() -> None:
    """Ray gives a process its title a moment later."""
    assert is_spare_owner(15, [SERVER, WorkerProcess(15, "python"), WorkerProcess(9, "ray::BrokerOfSomebody")])


@pytest.mark.parametrize(
    ("title", "expected"),
    [("ray::IDLE", True), ("/usr/bin/python3", True), ("ray::Broker", False), ("ray::task", False)],
)
def test_a_spare_is_a_process_that_does_nothing(title: str, expected: bool) -> None:
    assert is_spare(20, [SERVER, WorkerProcess(20, title)]) is expected


@pytest.mark.parametrize("pid", [None, 21])
def test_no_process_is_no_spare(pid: int | None) -> None:
    assert not is_spare(pid, [SERVER, IDLE])


@pytest.mark.parametrize(
    ("title", "expected"),
    [("ray::Broker.status", True), ("ray::NameServer", True), ("ray::task", False), ("ray::IDLE", False)],
)
def test_a_spare_was_of_use_to_an_actor_of_ours(title: str, expected: bool) -> None:
    assert was_reused(20, [SERVER, WorkerProcess(20, title)]) is expected
    assert not was_reused(21, [SERVER, WorkerProcess(20, title)])


def test_a_spare_that_was_of_use_is_replaced_at_once() -> None:
    clock = FakeClock()
    upkeep = RespawnPolicy(clock)
    for _ in range(20):
        assert upkeep.is_due(is_idle=False)
        clock.advance(1)
        assert not upkeep.is_due(is_idle=False)
        upkeep.forget_failures()


class Node(SpareProcess):
    """Say which processes there are, and make none."""

    def __init__(self) -> None:
        self._broker, self._spare = "broker-a", None
        self.processes = [WorkerProcess(os.getpid(), "ray::Broker")]
        self.made: list[int] = []

    def _workers(self) -> list[WorkerProcess]:
        return self.processes

    def _make(self, before: set[int]) -> int | None:
        self.made.append(max(before) + 1)
        self.processes = [*self.processes, WorkerProcess(self.made[-1], "ray::IDLE")]
        return self.made[-1]


@pytest.mark.parametrize(("title", "is_replaced"), [("ray::Broker", True), ("ray::task", False)])
def test_a_look_replaces_a_spare_at_once_where_it_was_of_use(title: str, is_replaced: bool) -> None:
    clock, node = FakeClock(), Node()
    upkeep = RespawnPolicy(clock)
    node._look(upkeep)
    assert len(node.made) == 1
    clock.advance(1)
    node.processes[-1] = WorkerProcess(node.made[0], title)
    node._look(upkeep)
    assert len(node.made) == 1 + is_replaced


def test_the_first_spare_is_made_at_once() -> None:
    assert RespawnPolicy(FakeClock()).is_due(is_idle=False)


def test_a_spare_that_is_there_is_the_only_one() -> None:
    clock = FakeClock()
    upkeep = RespawnPolicy(clock)
    assert upkeep.is_due(is_idle=False)
    for _ in range(1_000):
        clock.advance(5)
        assert not upkeep.is_due(is_idle=True)


def test_a_spare_that_waited_long_is_replaced_at_once() -> None:
    clock = FakeClock()
    upkeep = RespawnPolicy(clock)
    for _ in range(20):
        assert upkeep.is_due(is_idle=False)
        for _ in range(13):
            clock.advance(5)
            assert not upkeep.is_due(is_idle=True)


def test_spares_that_always_vanish_cost_little() -> None:
    clock = FakeClock()
    upkeep = RespawnPolicy(clock)
    made = []
    while clock.now < 1_000 + 24 * 3_600:
        if upkeep.is_due(is_idle=False):
            made.append(clock.now)
            clock.advance(5)
            assert not upkeep.is_due(is_idle=True)  # it is there for a moment
        clock.advance(5)
    pauses = [later - before for before, later in itertools.pairwise(made)]
    assert pauses[0] <= 15
    assert 2_800 <= max(pauses) <= 3_620
    assert len(made) <= 45


@pytest.mark.parametrize(("value", "expected"), [(None, True), ("1", True), ("", True), ("0", False)])
def test_the_environment_says_whether_there_is_one(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool
) -> None:
    monkeypatch.delenv(SPARE_PROCESS, raising=False)
    if value is not None:
        monkeypatch.setenv(SPARE_PROCESS, value)
    assert is_spare_enabled() is expected
