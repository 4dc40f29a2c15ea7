"""Waits between tries: they grow, stay below their cap, and go on doing so however often something fails."""

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
def test_the_wait_after_any_number_of_failures_is_the_cap(factor: float) -> None:
    """2.0 to the 1,024th is no float any more: that ended every thread and task that had failed so often."""
    backoff = Backoff(first=0.25, factor=factor, cap=60.0, rng=random.Random(1))
    for _ in range(5_000):
        delay = backoff.next_delay()
    assert 48.0 <= delay <= 60.0


def test_a_success_begins_anew() -> None:
    backoff = Backoff(jitter=0.0)
    for _ in range(3_000):
        backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == 1.0
