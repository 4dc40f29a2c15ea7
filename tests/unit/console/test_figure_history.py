"""Test the ring of the last hour, rates from counters, and the turn of samples."""

from __future__ import annotations

from raymq.client import MessageQueue
from raymq.console.figure_history import CounterRate, FigureHistory, FigureSeries, SampleRotation


def test_series_keeps_the_span_and_no_more() -> None:
    series = FigureSeries(span=60.0, every=5.0)
    for at in range(0, 300, 5):
        series.add(float(at), at * 2.0)
    assert series.points[0] == (235.0, 470.0)
    assert series.points[-1] == (295.0, 590.0)
    assert len(series.points) == 13
    assert (series.newest, series.newest_at) == (590.0, 295.0)


def test_series_has_a_bounded_length_whatever_the_pace() -> None:
    series = FigureSeries(span=60.0, every=5.0)
    for at in range(10_000):
        series.add(at / 100, 1.0)
    assert len(series.points) == 13


def test_series_keeps_unknown_values_and_ignores_a_clock_that_goes_back() -> None:
    series = FigureSeries()
    series.add(10.0, 1.0)
    series.add(15.0, None)
    series.add(12.0, 5.0)
    assert series.points == [(10.0, 1.0), (15.0, None)]
    assert series.newest is None


def test_history_drops_series_that_ended() -> None:
    history = FigureHistory(span=60.0)
    history.add(("lag", "gone"), 0.0, 1.0)
    history.add(("lag", "here"), 50.0, None)
    history.drop_old(100.0)
    assert history.names("lag") == [("lag", "here")]
    assert history.points("lag", "gone") == []
    assert history.newest("lag", "gone") is None


ON_A, ON_B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)


def test_rate_is_unknown_before_the_second_reading_and_after_a_step_back() -> None:
    rate = CounterRate()
    assert rate.read(0.0, {ON_A: 100}) is None
    assert rate.read(5.0, {ON_A: 150}) == 10.0
    assert rate.read(10.0, {ON_A: 150}) == 0.0
    assert rate.read(15.0, {ON_A: 20}) is None, "the topic was created anew"
    assert rate.read(20.0, {ON_A: 30}) == 2.0
    assert rate.read(20.0, {ON_A: 40}) is None, "no time has passed"
    assert rate.read(25.0, {}) is None


def test_rate_has_nothing_of_the_time_when_a_broker_was_away() -> None:
    rate = CounterRate()
    rate.read(0.0, {ON_A: 100, ON_B: 190_000})
    assert rate.read(5.0, {ON_A: 600, ON_B: 190_500}) == 200.0
    assert rate.read(10.0, {ON_A: 1_100}) == 100.0, "what broker-b has is not lost"
    assert rate.read(15.0, {ON_A: 1_600, ON_B: 190_700}) == 100.0, "what it has is not new"
    assert rate.read(20.0, {ON_A: 2_100, ON_B: 191_200}) == 200.0


def test_rotation_takes_every_name_in_turn() -> None:
    rotation = SampleRotation(budget=2)
    names = ["a", "b", "c", "d", "e"]
    assert [rotation.next(names) for _ in range(3)] == [["a", "b"], ["c", "d"], ["e", "a"]]
    assert rotation.next(["b", "d", "f"]) == ["b", "d"], "names that are gone do not stop it"
    assert rotation.next(["a"]) == ["a"]
    assert rotation.next([]) == []
