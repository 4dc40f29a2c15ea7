"""Test that waits between tries grow up to their cap, after any number of failures."""

from __future__ import annotations

import random

import pytest

from raymq.actors.backoff import Backoff


def test_waits_grow_up_to_the_cap() -> None:
    backoff = Backoff(jitter=0.0)
    delays = [backoff.next_delay() for _ in range(12)]
    assert delays[:3] == pytest.approx([1.0, 1.6, 2.56])
    assert delays == sorted(delays)
    assert delays[-1] == 120.0


@pytest.mark.parametrize("factor", [1.6, 2.0, 10.0])
def test_wait_stays_at_cap_after_thousands_of_failures(factor: float) -> None:
    """Guard against a float overflow after 1,024 failures.

    2.0 to the 1,024th exceeds a float, which ended each thread and task that had failed so often.
    """
    backoff = Backoff(first=0.25, factor=factor, cap=60.0, rng=random.Random(1))
    for _ in range(5_000):
        delay = backoff.next_delay()
    assert 48.0 <= delay <= 60.0


def test_reset_restarts_waits() -> None:
    backoff = Backoff(jitter=0.0)
    for _ in range(3_000):
        backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == 1.0
