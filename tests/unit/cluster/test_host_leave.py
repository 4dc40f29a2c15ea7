"""Test the leave of a machine: the successors of its masters, and the closing of its stores."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest
import ray

from raymq.actors import actor_calls
from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.protocol import BrokerInfo
from raymq.cluster.bootstrap import Cluster
from raymq.cluster.host_leave import LeaveResult, choose_successor, close_stores, leave_host


def replica(number: int, state: str = "running", in_sync: list[int] | None = None) -> BrokerInfo:
    role = "replica" if number else "master"
    return BrokerInfo("broker-a", number, role, state, 1, "h:1", 1, f"node-{number}", "d", 0.1, in_sync=in_sync)


@pytest.mark.parametrize(
    ("in_sync", "states", "chosen"),
    [
        ([0, 1, 2], ["running", "running"], 1),
        ([0, 2], ["running", "running"], 2),
        ([0, 1, 2], ["unreachable", "running"], 2),
        ([0], ["running", "running"], None),
        ([0, 1], ["unreachable", "running"], None),
        (None, ["running", "running"], None),
    ],
)
def test_successor_is_the_first_running_replica_in_sync(
    in_sync: list[int] | None, states: list[str], chosen: int | None
) -> None:
    others = [replica(number, state) for number, state in enumerate(states, 1)]
    assert choose_successor(replica(0, in_sync=in_sync), others) == chosen


class StoppableActors:
    """Actors whose `stop` calls are recorded; broker-a does not exist, and broker-b does not answer."""

    def __init__(self) -> None:
        self.stopped: list[str] = []

    def find(self, name: str, namespace: str) -> SimpleNamespace:
        if name == "broker-a":
            raise BrokerUnavailable(name, f"no such actor in namespace {namespace}")
        return SimpleNamespace(stop=SimpleNamespace(remote=lambda: name))

    def result(self, name: str, ref: str, timeout: float) -> None:
        self.stopped.append(ref)
        if name == "broker-b":
            raise BrokerUnavailable(name, "it does not answer")


def test_store_that_fails_to_close_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = StoppableActors()
    monkeypatch.setattr(actor_calls, "find", actors.find)
    monkeypatch.setattr(actor_calls, "result", actors.result)
    done = close_stores(
        [LeaveResult("broker-a", 0), LeaveResult("broker-b", 0, 1), LeaveResult("broker-c", 2)],
        "ns",
        time.monotonic() + 5,
    )
    assert actors.stopped == ["broker-b", "broker-c.2"]
    assert [(each.broker, each.handed_to, each.trouble is None) for each in done] == [
        ("broker-a", None, False),
        ("broker-b", 1, False),
        ("broker-c", None, True),
    ]


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 0.0, -1.0])
def test_leave_with_an_invalid_timeout_closes_nothing(timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover a regression: an infinite timeout ended in a traceback when stores were closed."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: pytest.fail("it has begun"))
    with pytest.raises(InvalidInput, match="timeout"):
        leave_host(cast("Cluster", SimpleNamespace(namespace="ns")), timeout)
