"""The watch over executors, with counts that a test gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from raymq.spark_bridge.executor_watchdog import ExecutorWatchdog


def watch(counts: list[int | None], patience: float) -> int:
    """How often a watch gave up that saw `counts` one after the other."""
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


def test_jobs_are_given_up_when_executors_stay_away() -> None:
    assert watch([1, 0, 0, 0], patience=0.0) == 3


def test_short_absence_and_unknown_counts_are_waited_for() -> None:
    assert watch([1, 0, None, 0, 2, 0], patience=3600.0) == 0
    assert watch([None, None, 1], patience=0.0) == 0


def test_a_closed_watch_has_ended() -> None:
    running = ExecutorWatchdog(lambda: 1, lambda: None, interval=3600.0)
    running.close()
    assert "raymq-spark-watch" not in {thread.name for thread in threading.enumerate()}
