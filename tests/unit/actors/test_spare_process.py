"""Test when a broker lets Ray start an idle process, and which broker of a node does."""

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
def test_one_broker_of_node_keeps_spare(order: tuple[WorkerProcess, ...]) -> None:
    assert [pid for pid in (13, 14) if is_spare_owner(pid, order)] == [13]


def test_broker_that_sees_no_broker_keeps_spare() -> None:
    """Cover the moment before Ray sets the title of a process."""
    assert is_spare_owner(15, [SERVER, WorkerProcess(15, "python"), WorkerProcess(9, "ray::BrokerOfSomebody")])


@pytest.mark.parametrize(
    ("title", "expected"),
    [("ray::IDLE", True), ("/usr/bin/python3", True), ("ray::Broker", False), ("ray::task", False)],
)
def test_spare_is_idle_process(title: str, expected: bool) -> None:
    assert is_spare(20, [SERVER, WorkerProcess(20, title)]) is expected


@pytest.mark.parametrize("pid", [None, 21])
def test_missing_process_is_not_spare(pid: int | None) -> None:
    assert not is_spare(pid, [SERVER, IDLE])


@pytest.mark.parametrize(
    ("title", "expected"),
    [("ray::Broker.status", True), ("ray::NameServer", True), ("ray::task", False), ("ray::IDLE", False)],
)
def test_spare_used_by_raymq_actor_counts_as_reused(title: str, expected: bool) -> None:
    assert was_reused(20, [SERVER, WorkerProcess(20, title)]) is expected
    assert not was_reused(21, [SERVER, WorkerProcess(20, title)])


def test_reused_spare_is_replaced_at_once() -> None:
    clock = FakeClock()
    upkeep = RespawnPolicy(clock)
    for _ in range(20):
        assert upkeep.is_due(is_idle=False)
        clock.advance(1)
        assert not upkeep.is_due(is_idle=False)
        upkeep.forget_failures()


class Node(SpareProcess):
    """Return a prepared list of processes, and start none."""

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
def test_check_replaces_only_reused_spare_at_once(title: str, is_replaced: bool) -> None:
    clock, node = FakeClock(), Node()
    upkeep = RespawnPolicy(clock)
    node._look(upkeep)
    assert len(node.made) == 1
    clock.advance(1)
    node.processes[-1] = WorkerProcess(node.made[0], title)
    node._look(upkeep)
    assert len(node.made) == 1 + is_replaced


def test_first_spare_is_started_at_once() -> None:
    assert RespawnPolicy(FakeClock()).is_due(is_idle=False)


def test_second_spare_is_not_started() -> None:
    clock = FakeClock()
    upkeep = RespawnPolicy(clock)
    assert upkeep.is_due(is_idle=False)
    for _ in range(1_000):
        clock.advance(5)
        assert not upkeep.is_due(is_idle=True)


def test_spare_lost_after_long_wait_is_replaced_at_once() -> None:
    clock = FakeClock()
    upkeep = RespawnPolicy(clock)
    for _ in range(20):
        assert upkeep.is_due(is_idle=False)
        for _ in range(13):
            clock.advance(5)
            assert not upkeep.is_due(is_idle=True)


def test_vanishing_spares_are_started_rarely() -> None:
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
def test_environment_variable_disables_spare(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool
) -> None:
    monkeypatch.delenv(SPARE_PROCESS, raising=False)
    if value is not None:
        monkeypatch.setenv(SPARE_PROCESS, value)
    assert is_spare_enabled() is expected
