"""When the next call of a listener is expected to be quick."""

from __future__ import annotations

import pytest

from raymq.client.push.listener_latency import QUICK_SECONDS, STREAK, ListenerLatency
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def respite(pace: ListenerLatency, clock: FakeClock) -> float:
    """How long after a slow call, and a quick one behind it, the next ones do not count as quick."""
    pace.took(1.0)
    pace.took(0.0)
    began = clock.now
    while not pace.is_quick:
        clock.advance(0.01)
    return clock.now - began


def test_nothing_is_known_before_the_first_call(clock: FakeClock) -> None:
    pace = ListenerLatency(clock)
    assert not pace.is_quick
    pace.took(QUICK_SECONDS)
    assert pace.is_quick


def test_a_slow_call_is_followed_by_a_respite_and_has_to_be_followed_by_a_quick_one(clock: FakeClock) -> None:
    pace = ListenerLatency(clock)
    pace.took(0.0)
    pace.took(QUICK_SECONDS * 1.01)
    assert not pace.is_quick
    clock.advance(3_600)
    assert not pace.is_quick, "the last one was slow"
    pace.took(0.0)
    assert pace.is_quick


def test_the_respite_grows_until_there_was_a_streak(clock: FakeClock) -> None:
    pace = ListenerLatency(clock)
    first, second = respite(pace, clock), respite(pace, clock)
    assert 0.15 < first < second
    for _ in range(20):
        longest = respite(pace, clock)
    assert 40 < longest < 61
    for _ in range(STREAK):
        pace.took(0.0)
    assert respite(pace, clock) < second
