"""Test the loop of cluster changes: retries after short outages, errors after long ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput, Timeout
from raymq.cluster.elastic.change_steps import StopReplica, WaitStep
from raymq.cluster.elastic.reconcile_loop import run_until_done
from raymq.cluster.elastic.stall_timeout import STALL_TIMEOUT_SECONDS


class Cluster:
    """A cluster whose reads and steps raise the `answers` in turn; None means success."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers: Iterator[Exception | None] = iter(answers)
        self.done: list[object] = []
        self.said: list[str] = []
        self.now = 0.0

    def _meet(self) -> None:
        self.now += 1.0
        if (error := next(self._answers, None)) is not None:
            raise error

    async def look(self) -> int:
        self._meet()
        return len(self.done)

    async def do(self, step: object) -> str:
        self._meet()
        self.done.append(step)
        return f"did {step}"

    def run(self) -> list[str]:
        steps = [StopReplica("broker-a"), StopReplica("broker-b")]
        doing = run_until_done(
            self.look,
            lambda done: steps[done] if done < len(steps) else None,
            self.do,
            self.said.append,
            clock=lambda: self.now,
            pause_seconds=0.0,
        )
        return asyncio.run(doing)


def test_each_step_is_announced_and_done() -> None:
    cluster = Cluster()
    assert cluster.run() == ["ends broker-a", "ends broker-b"]
    assert cluster.said == ["ends broker-a", "did ends broker-a", "ends broker-b", "did ends broker-b"]


def test_unavailable_broker_is_retried() -> None:
    cluster = Cluster(Timeout("name-server-0", "late"), None, BrokerUnavailable("broker-a", "away"))
    assert cluster.run() == ["ends broker-a", "ends broker-b"]
    assert cluster.said[0] == str(WaitStep("name-server-0: late"))
    assert cluster.said[2] == str(WaitStep("broker-a: away"))
    assert cluster.said.count("ends broker-a") == 2


def test_long_outage_or_permanent_error_ends_the_loop() -> None:
    away = Cluster(*[BrokerUnavailable("broker-a", "away")] * int(STALL_TIMEOUT_SECONDS + 2))
    with pytest.raises(BrokerUnavailable, match="away"):
        away.run()
    wrong = Cluster(None, InvalidInput("broker", "another one", "x"))
    with pytest.raises(InvalidInput):
        wrong.run()


def test_separate_short_outages_do_not_add_up() -> None:
    """A drain takes days, in which the same name server restarts twice."""
    away, days = BrokerUnavailable("name-server-0", "away"), [None] * int(2 * STALL_TIMEOUT_SECONDS)
    cluster = Cluster(away, *days, away)
    doing = run_until_done(
        cluster.look,
        lambda _: WaitStep("broker-a has 1 timers") if cluster.now < len(days) + 5 else None,
        cluster.do,
        cluster.said.append,
        clock=lambda: cluster.now,
        pause_seconds=0.0,
    )
    assert asyncio.run(doing) == []
    assert cluster.said.count(str(WaitStep(str(away)))) == 2
