"""Test the circuit breaker for outages, and the token bucket for rates."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from raymq.client.push.call_limits import (
    FIRST_PROBE_SECONDS,
    LONGEST_PROBE_SECONDS,
    OUTAGE_FAILURES,
    WINDOW_OUTCOMES,
    CircuitBreaker,
    TokenBucket,
)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def fail(outage: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        outage.record(success=False)


def test_outage_begins_when_nearly_all_calls_fail() -> None:
    outage = CircuitBreaker(Clock())
    fail(outage, OUTAGE_FAILURES - 1)
    assert (outage.active, outage.wait_seconds) == (False, 0.0)
    fail(outage, 1)
    assert (outage.active, outage.wait_seconds) == (True, FIRST_PROBE_SECONDS)


@pytest.mark.parametrize("successes", [WINDOW_OUTCOMES - OUTAGE_FAILURES + 1, 10])
def test_poison_messages_are_no_outage(successes: int) -> None:
    outage = CircuitBreaker(Clock())
    for number in range(10 * WINDOW_OUTCOMES):
        outage.record(success=number % WINDOW_OUTCOMES < successes)
        assert not outage.active


def test_probe_waits_grow_until_a_probe_succeeds() -> None:
    clock = Clock()
    outage = CircuitBreaker(clock)
    fail(outage, WINDOW_OUTCOMES)
    waits = []
    for _ in range(12):
        waits.append(outage.wait_seconds)
        clock.now += outage.wait_seconds
        assert outage.wait_seconds == 0.0
        outage.record(success=False)
        outage.probe_failed()
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (FIRST_PROBE_SECONDS, LONGEST_PROBE_SECONDS)
    outage.record(success=True)
    assert (outage.active, outage.wait_seconds) == (False, 0.0)
    fail(outage, OUTAGE_FAILURES - 1)
    assert not outage.active, "what failed before the success is forgotten"
    fail(outage, 1)
    assert outage.wait_seconds == FIRST_PROBE_SECONDS


@pytest.mark.parametrize(("rate", "batch"), [(1.0, 1), (10.0, 1), (10.0, 7), (1000.0, 50), (0.5, 1)])
def test_token_bucket_keeps_its_rate(rate: float, batch: int) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, clock)
    taken = 0
    seconds = 200.0
    while clock.now < 100.0 + seconds:
        wait = bucket.wait_seconds
        if wait > 0:
            clock.now += wait
            continue
        bucket.take(batch)
        taken += batch
    burst = max(1.0, rate * 0.1)
    assert rate * seconds - batch <= taken <= rate * seconds + burst + batch
