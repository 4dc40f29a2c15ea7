"""Test the restart of a stopped broker: its process is killed once, and the wait is bounded."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster import cluster_launch

STOPPED = SimpleNamespace(is_stopped=None)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of killed actors; `time` advances one second per call."""
    found: list[str] = []
    now = iter(range(10_000))
    clock = SimpleNamespace(monotonic=lambda: float(next(now)), sleep=lambda _: None)
    monkeypatch.setattr(cluster_launch, "time", clock)
    monkeypatch.setattr(cluster_launch, "kill_process", lambda _, name: found.append(name))
    return found


def set_answer(monkeypatch: pytest.MonkeyPatch, is_stopped: Callable[[], bool]) -> None:
    monkeypatch.setattr(cluster_launch.actor_calls, "call", lambda *_, **__: is_stopped())


def test_stopped_broker_is_killed_once_and_awaited(monkeypatch: pytest.MonkeyPatch, killed: list[str]) -> None:
    states = iter([True, True, True, False])
    set_answer(monkeypatch, lambda: next(states))
    cluster_launch.restart_stopped("n", "broker-a", STOPPED)
    assert killed == ["broker-a"]


def test_broker_that_stays_stopped_raises_unavailable(monkeypatch: pytest.MonkeyPatch, killed: list[str]) -> None:
    set_answer(monkeypatch, lambda: True)
    with pytest.raises(BrokerUnavailable, match="no other process started within 120 s"):
        cluster_launch.restart_stopped("n", "broker-a", STOPPED)
    assert killed == ["broker-a"]
