"""Test counters: windows, totals and midnight totals."""

from __future__ import annotations

import time

import pytest

from raymq.actors.broker.core.statistics import DAY, HOUR, MAX_PAIRS, MINUTE, Counter, Statistics
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(time.mktime((2024, 3, 5, 12, 0, 0, 0, 0, -1)))


@pytest.fixture
def statistics(clock: FakeClock) -> Statistics:
    return Statistics(clock)


def messages(counter: Counter | None, clock: FakeClock, seconds: float) -> int:
    assert counter is not None
    return counter.sums(clock(), seconds).messages


def test_each_key_has_its_own_counter(statistics: Statistics, clock: FakeClock) -> None:
    statistics.put("t", 3, 300)
    statistics.put("u", 1, 10)
    statistics.get("g", "t", 2, 200)
    statistics.sent_back("g", "t")
    put, got = statistics.put_of("t"), statistics.get_of("g", "t")
    assert put is not None
    assert got is not None
    assert (put.calls, put.messages, put.bytes) == (1, 3, 300)
    assert (got.calls, got.messages, got.bytes) == (1, 2, 200)
    assert messages(statistics.sent_back_of("g", "t"), clock, MINUTE) == 1
    assert (statistics.total_put.messages, statistics.total_get.messages) == (4, 2)
    assert statistics.put_of("never") is None
    assert statistics.get_of("g", "u") is None


@pytest.mark.parametrize(("age", "minute", "hour", "day"), [(0, 7, 7, 7), (50, 7, 7, 7), (65, 0, 7, 7)])
def test_old_events_leave_window(
    statistics: Statistics, clock: FakeClock, age: float, minute: int, hour: int, day: int
) -> None:
    statistics.put("t", 7, 70)
    clock.advance(age)
    counter = statistics.put_of("t")
    assert [messages(counter, clock, window) for window in (MINUTE, HOUR, DAY)] == [minute, hour, day]


def test_hour_and_day_windows(statistics: Statistics, clock: FakeClock) -> None:
    for _ in range(30):
        statistics.put("t", 1, 10)
        clock.advance(3600)
    counter = statistics.put_of("t")
    assert messages(counter, clock, HOUR) == 0
    assert messages(counter, clock, DAY) == 23
    assert counter is not None
    assert counter.messages == 30
    with pytest.raises(ValueError, match="covers"):
        counter.sums(clock(), 2 * DAY)


def test_rate_is_mean_of_window(statistics: Statistics, clock: FakeClock) -> None:
    for _ in range(60):
        statistics.put("t", 5, 50)
        clock.advance(1)
    assert statistics.total_put.sums(clock(), MINUTE).messages_per_second == pytest.approx(5, rel=0.1)


def test_clock_set_back_loses_no_events(statistics: Statistics, clock: FakeClock) -> None:
    statistics.put("t", 1, 1)
    clock.advance(-30)
    statistics.put("t", 1, 1)
    assert messages(statistics.put_of("t"), clock, MINUTE) == 2


def test_totals_of_last_two_midnights(statistics: Statistics, clock: FakeClock) -> None:
    statistics.put("t", 5, 50)
    assert statistics.midnight_totals() == ((0, 0), (0, 0))
    clock.advance(DAY / 2 + 1)
    statistics.put("t", 3, 30)
    statistics.get("g", "t", 1, 10)
    assert statistics.midnight_totals() == ((5, 0), (0, 0))
    clock.advance(DAY)
    assert statistics.midnight_totals() == ((8, 1), (5, 0))
    clock.advance(3 * DAY)
    assert statistics.midnight_totals() == ((8, 1), (8, 1))


def test_deleted_topics_and_groups_are_forgotten(statistics: Statistics) -> None:
    for topic in ("t", "u"):
        statistics.put(topic, 1, 1)
        for group in ("g", "h"):
            statistics.get(group, topic, 1, 1)
            statistics.sent_back(group, topic)
    statistics.forget_topic("t")
    statistics.forget_group("g")
    assert statistics.put_of("t") is None
    assert statistics.get_of("h", "t") is None
    assert statistics.sent_back_of("g", "u") is None
    assert statistics.put_of("u") is not None
    assert statistics.get_of("h", "u") is not None


def test_group_counters_are_bounded(statistics: Statistics, clock: FakeClock) -> None:
    """Forget the least recently used counters first, and keep a busy group."""
    for number in range(3 * MAX_PAIRS):
        clock.advance(0.001)
        statistics.get(f"made up {number}", "t", 1, 10)
        statistics.sent_back(f"made up {number}", "t")
        if number % 100 == 0:
            clock.advance(5)
            statistics.get("busy", "t", 1, 10)
    assert len(statistics._get) <= MAX_PAIRS
    assert len(statistics._sent_back) <= MAX_PAIRS
    busy = statistics.get_of("busy", "t")
    assert busy is not None
    assert busy.messages == 3 * MAX_PAIRS // 100
    assert statistics.get_of(f"made up {3 * MAX_PAIRS - 1}", "t") is not None


def test_counters_unused_for_a_day_are_forgotten(statistics: Statistics, clock: FakeClock) -> None:
    for number in range(1_000):
        statistics.put(f"t{number}", 1, 10)
        statistics.get(f"g{number}", "t", 1, 10)
    clock.advance(DAY - 10)
    statistics.get("g7", "t", 1, 10)
    clock.advance(20)
    for number in range(1_100):
        statistics.put(f"u{number}", 1, 10)
        statistics.get(f"h{number}", "t", 1, 10)
    assert statistics.put_of("t7") is None
    assert statistics.get_of("g8", "t") is None
    assert statistics.get_of("g7", "t") is not None
    assert (len(statistics._put), len(statistics._get)) == (1_100, 1_101)
    assert statistics.total_put.messages == 2_100
