"""A broker whose process was stopped, and which is to serve again: killed once, and not waited for without end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster import cluster_launch

STOPPED = SimpleNamespace(is_stopped=None)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those that were killed; `time` goes on by a second with each pause."""
    found: list[str] = []
    now = iter(range(10_000))
    clock = SimpleNamespace(monotonic=lambda: float(next(now)), sleep=lambda _: None)
    monkeypatch.setattr(cluster_launch, "time", clock)
    monkeypatch.setattr(cluster_launch, "kill_process", lambda _, name: found.append(name))
    return found


def answers(monkeypatch: pytest.MonkeyPatch, is_stopped: Callable[[], bool]) -> None:
    monkeypatch.setattr(cluster_launch.actor_calls, "call", lambda *_, **__: is_stopped())


def test_one_that_was_stopped_is_killed_once_and_waited_for(monkeypatch: pytest.MonkeyPatch, killed: list[str]) -> None:
    told = iter([True, True, True, False])
    answers(monkeypatch, lambda: next(told))
    cluster_launch.restart_stopped("n", "broker-a", STOPPED)
    assert killed == ["broker-a"]


def test_one_that_stays_stopped_is_given_up(monkeypatch: pytest.MonkeyPatch, killed: list[str]) -> None:
    answers(monkeypatch, lambda: True)
    with pytest.raises(BrokerUnavailable, match="no other process started within 120 s"):
        cluster_launch.restart_stopped("n", "broker-a", STOPPED)
    assert killed == ["broker-a"]
