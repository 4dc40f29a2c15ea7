"""Test the executor watchdog with given executor counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from raymq.spark_bridge.executor_watchdog import ExecutorWatchdog


def run_watchdog(counts: list[int | None], patience: float) -> int:
    """Return how often a watchdog gave up that saw `counts` in turn."""
    gave_up: list[None] = []
    over = threading.Event()
    left: Iterator[int | None] = iter(counts)

    def executors() -> int | None:
        try:
            return next(left)
        except StopIteration:
            over.set()
            return 1

    running = ExecutorWatchdog(executors, lambda: gave_up.append(None), patience=patience, interval=0.001)
    assert over.wait(10.0)
    running.close()
    return len(gave_up)


def test_watchdog_gives_up_while_executors_are_absent() -> None:
    assert run_watchdog([1, 0, 0, 0], patience=0.0) == 3


def test_watchdog_waits_for_short_absence_and_unknown_counts() -> None:
    assert run_watchdog([1, 0, None, 0, 2, 0], patience=3600.0) == 0
    assert run_watchdog([None, None, 1], patience=0.0) == 0


def test_closed_watchdog_has_no_thread() -> None:
    running = ExecutorWatchdog(lambda: 1, lambda: None, interval=3600.0)
    running.close()
    assert "raymq-spark-watch" not in {thread.name for thread in threading.enumerate()}
