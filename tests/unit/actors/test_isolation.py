"""Test each isolation strategy with tables of reported outcomes and the rank after each step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raymq.actors.sending.isolation import (
    FlagIsolation,
    Isolation,
    LatencyIsolation,
    LeastFailuresIsolation,
    QuarantineIsolation,
    TryOutcome,
)
from tests.unit.actors.clock import FakeClock

OK, REFUSED, SILENT = TryOutcome.ANSWERED, TryOutcome.REFUSED, TryOutcome.SILENT


@pytest.mark.parametrize(
    ("latency_ms", "outcome", "window_ms"),
    [
        (0, OK, 0),
        (49.9, OK, 0),
        (50, OK, 0),
        (99.9, OK, 0),
        (100, OK, 0),
        (549.9, OK, 0),
        (550, OK, 2_000),
        (1_799.9, OK, 2_000),
        (1_800, OK, 5_000),
        (2_999.9, OK, 5_000),
        (3_000, OK, 6_000),
        (4_999.9, OK, 6_000),
        (5_000, OK, 10_000),
        (14_999.9, OK, 10_000),
        (15_000, OK, 30_000),
        (60_000, OK, 30_000),
        (1, SILENT, 10_000),
        (1, REFUSED, 10_000),
        (20_000, SILENT, 10_000),
    ],
)
def test_latency_window_of_each_bucket(latency_ms: float, outcome: TryOutcome, window_ms: int) -> None:
    clock = FakeClock()
    isolation = LatencyIsolation(clock)
    isolation.report("a", outcome, latency_ms)
    if window_ms:
        clock.advance(window_ms / 1000 - 0.001)
        assert isolation.rank("a")
        clock.advance(0.002)
    assert isolation.rank("a") == 0


#: (seconds since the step before, outcome or None, latency ms, rank afterwards)
Step = tuple[float, TryOutcome | None, float, int]


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        pytest.param(
            LatencyIsolation,
            [
                (0, OK, 15_000, 1),
                (1, OK, 1, 1),
                (28, OK, 550, 1),
                (0.9, None, 0, 1),
                (0.2, None, 0, 1),
                (1, None, 0, 0),
            ],
            id="latency: a window only grows",
        ),
        pytest.param(
            LatencyIsolation,
            [(0, SILENT, 0, 2), (9, OK, 10, 1), (0.9, None, 0, 1), (0.2, None, 0, 0)],
            id="latency: a success does not shorten a window, but the broker counts as answering",
        ),
        pytest.param(
            LatencyIsolation,
            [(0, SILENT, 0, 2), (9, REFUSED, 0, 2), (9, None, 0, 2), (1.1, None, 0, 0)],
            id="latency: a later failure extends",
        ),
        pytest.param(
            LatencyIsolation,
            [
                (0.2, OK, 200, 0),
                (0.21, OK, 200, 0),
                (0.21, OK, 200, 1),
                (1.9, None, 0, 1),
                (0.2, None, 0, 0),
                (0.2, OK, 200, 1),
                (2.1, OK, 99, 0),
                (0.21, OK, 200, 0),
                (0.21, OK, 200, 0),
            ],
            id="latency: three slow answers in a row are a window, and each that follows, until one is quick",
        ),
        pytest.param(
            LatencyIsolation,
            [(0.2, OK, 200, 0), (0, OK, 200, 0), (0.1, OK, 250, 0), (0.1, OK, 300, 0), (0.3, OK, 200, 0)],
            id="latency: answers that waited at the same time count once",
        ),
        pytest.param(
            QuarantineIsolation,
            [(0, OK, 60_000, 0), (0, SILENT, 0, 1), (6, REFUSED, 0, 1), (9.9, OK, 1, 1), (0.2, None, 0, 0)],
            id="quarantine: each failure begins the clean period anew, slowness is no failure",
        ),
        pytest.param(
            FlagIsolation,
            [
                (29, SILENT, 0, 1),
                (0.9, OK, 1, 1),
                (0.2, None, 0, 0),
                (0, REFUSED, 0, 1),
                (29, None, 0, 1),
                (1, None, 0, 0),
            ],
            id="flag: all flags fall every 30 s, whenever they were raised",
        ),
        pytest.param(
            FlagIsolation,
            [(95, SILENT, 0, 1), (24, None, 0, 1), (2, None, 0, 0)],
            id="flag: periods that nobody watched pass as well",
        ),
        pytest.param(
            LeastFailuresIsolation,
            [(0, SILENT, 0, 1), (30, REFUSED, 0, 2), (0, OK, 1, 2), (31, None, 0, 1), (30, None, 0, 0)],
            id="least failures: each counts for 60 s",
        ),
    ],
)
def test_ranks_after_each_step(make: Callable[[FakeClock], Isolation], steps: list[Step]) -> None:
    clock = FakeClock()
    isolation = make(clock)
    seen = []
    for seconds, outcome, latency_ms, _ in steps:
        clock.advance(seconds)
        if outcome is not None:
            isolation.report("a", outcome, latency_ms)
        seen.append(isolation.rank("a"))
    assert seen == [rank for *_, rank in steps]
    assert isolation.rank("another") == 0


def test_least_failures_history_is_bounded() -> None:
    isolation = LeastFailuresIsolation(FakeClock())
    for _ in range(5_000):
        isolation.report("a", SILENT, 0)
    assert isolation.rank("a") == 1_000
