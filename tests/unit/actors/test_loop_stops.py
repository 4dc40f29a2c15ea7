"""How long a loop stood still, by a clock of the test's."""

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


def test_a_loop_that_comes_round_in_time_has_no_stops() -> None:
    loop = Loop()
    loop.beats(*[0.0] * 100)
    assert loop.stops.longest == pytest.approx(0)
    assert loop.stops.long_count == 0


def test_the_longest_stop_and_the_number_of_long_ones_are_told() -> None:
    loop = Loop()
    loop.beats(0.001, 0.5, 0.002, 0.021, 0.019)
    assert loop.stops.longest == pytest.approx(0.5)
    assert loop.stops.recent == pytest.approx(0.5)
    assert loop.stops.long_count == 2


def test_what_was_long_ago_is_not_recent() -> None:
    loop = Loop()
    loop.beats(0.5)
    loop.now += WINDOW_SECONDS - 1
    assert loop.stops.recent == pytest.approx(0.5)
    loop = Loop()
    loop.beats(0.5, *[0.0] * round(2.5 * WINDOW_SECONDS / PROBE_SECONDS))
    assert loop.stops.recent == pytest.approx(0)
    assert loop.stops.longest == pytest.approx(0.5)
