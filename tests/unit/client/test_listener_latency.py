"""Test when the next call of a listener is expected to be quick."""

from __future__ import annotations

import pytest

from raymq.client.push.listener_runs import QUICK_SECONDS, STREAK, ListenerLatency
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def backoff_seconds(pace: ListenerLatency, clock: FakeClock) -> float:
    """Return how long calls count as slow after a slow call and a quick one."""
    pace.took(1.0)
    pace.took(0.0)
    began = clock.now
    while not pace.is_quick:
        clock.advance(0.01)
    return clock.now - began


def test_listener_is_not_quick_before_the_first_call(clock: FakeClock) -> None:
    pace = ListenerLatency(clock)
    assert not pace.is_quick
    pace.took(QUICK_SECONDS)
    assert pace.is_quick


def test_listener_is_quick_only_if_the_last_call_was(clock: FakeClock) -> None:
    pace = ListenerLatency(clock)
    pace.took(0.0)
    pace.took(QUICK_SECONDS * 1.01)
    assert not pace.is_quick
    clock.advance(3_600)
    assert not pace.is_quick, "the last one was slow"
    pace.took(0.0)
    assert pace.is_quick


def test_backoff_grows_until_a_streak_of_quick_calls(clock: FakeClock) -> None:
    pace = ListenerLatency(clock)
    first, second = backoff_seconds(pace, clock), backoff_seconds(pace, clock)
    assert 0.15 < first < second
    for _ in range(20):
        longest = backoff_seconds(pace, clock)
    assert 40 < longest < 61
    for _ in range(STREAK):
        pace.took(0.0)
    assert backoff_seconds(pace, clock) < second
