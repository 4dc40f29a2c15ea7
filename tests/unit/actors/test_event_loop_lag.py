"""Test the measurement of event loop lag with a fake clock."""

from __future__ import annotations

import pytest

from raymq.actors.broker.core.event_loop_lag import PROBE_SECONDS, WINDOW_SECONDS, EventLoopLag


class Loop:
    def __init__(self) -> None:
        self.now = 100.0
        self.stops = EventLoopLag(lambda: self.now)
        self.stops.beat()

    def beats(self, *late: float) -> None:
        for seconds in late:
            self.now += PROBE_SECONDS + seconds
            self.stops.beat()


def test_punctual_loop_has_no_lag() -> None:
    loop = Loop()
    loop.beats(*[0.0] * 100)
    assert loop.stops.longest == pytest.approx(0)
    assert loop.stops.long_count == 0


def test_longest_lag_and_long_lag_count_are_reported() -> None:
    loop = Loop()
    loop.beats(0.001, 0.5, 0.002, 0.021, 0.019)
    assert loop.stops.longest == pytest.approx(0.5)
    assert loop.stops.recent == pytest.approx(0.5)
    assert loop.stops.long_count == 2


def test_recent_lag_expires() -> None:
    loop = Loop()
    loop.beats(0.5)
    loop.now += WINDOW_SECONDS - 1
    assert loop.stops.recent == pytest.approx(0.5)
    loop = Loop()
    loop.beats(0.5, *[0.0] * round(2.5 * WINDOW_SECONDS / PROBE_SECONDS))
    assert loop.stops.recent == pytest.approx(0)
    assert loop.stops.longest == pytest.approx(0.5)
