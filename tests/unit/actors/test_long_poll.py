"""Parked requests: woken by arrivals, deadlines and their session's next request, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from raymq.actors.broker.core.reading.long_poll import TICK_SECONDS, LongPolls, QueueKey, TakeNext
from tests.unit.actors.clock import FakeClock
from tests.validated import validated


@pytest.fixture
def polls(clock: FakeClock) -> Iterator[LongPolls]:
    with validated(LongPolls(clock)) as made:
        yield made


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def wake(woken: list[str]) -> Callable[[str], Callable[[], None]]:
    return lambda name: lambda: woken.append(name)


Wake = Callable[[str], Callable[[], None]]


def test_an_arrival_wakes_who_waits_for_that_queue(
    polls: LongPolls, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    first = polls.park([("t", 0), ("t", 1)], clock.now + 15, wake("a"))
    second = polls.park([("t", 2)], clock.now + 15, wake("b"))
    polls.arrived([("t", 1), ("t", 0), ("u", 0)])
    assert woken == ["a"]
    assert (list(first.take_arrivals()), first.ended) == ([("t", 1)], True)
    assert (list(second.take_arrivals()), second.ended) == ([], False)
    assert len(polls) == 1


def test_a_standing_one_is_woken_once_for_what_it_has_not_taken(
    polls: LongPolls, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    parked = polls.park([("t", 0), ("t", 1)], clock.now + 15, wake("a"), standing=True)
    polls.arrived([("t", 1), ("t", 0), ("t", 2)])
    polls.arrived([("t", 1)])
    assert woken == ["a"]
    assert list(parked.take_arrivals()) == [("t", 1), ("t", 0)]
    assert woken == ["a"]
    polls.arrived([("t", 0)])
    assert (woken, parked.ended, len(polls)) == (["a", "a"], False, 1)
    clock.advance(16)
    polls.expire()
    polls.arrived([("t", 1)])
    assert (woken, parked.ended, len(polls)) == (["a", "a", "a"], True, 0)
    assert list(parked.take_arrivals()) == [("t", 0)]


def test_what_is_offered_is_taken_by_one_and_is_no_news_to_it(
    polls: LongPolls, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    offers: list[tuple[str, int]] = []
    takes = True

    def taker(name: str) -> TakeNext:
        def take(_: QueueKey, offset: int, physical_offset: int, size: int) -> bool:
            assert (physical_offset, size) == (4_096, 100)
            offers.append((name, offset))
            return takes

        return take

    queue = ("t", 0)
    for name in "ab":
        polls.park([queue], clock.now + 15, wake(name), standing=True, take_next=taker(name))
    polls.park([queue], clock.now + 15, wake("c"), standing=True)
    polls.offer(("t", 1), 6, 4_096, 100)
    assert offers == []
    polls.offer(queue, 7, 4_096, 100)
    ((first, _),) = offers
    polls.arrived([queue])
    assert sorted([*woken, first]) == ["a", "b", "c"], "who took it is not woken for it"
    polls.arrived([queue])
    assert woken.count(first) == 1, "nothing was offered"
    takes = False
    woken.clear()
    offers.clear()
    polls.offer(queue, 9, 4_096, 100)
    assert sorted(offers) == [("a", 9), ("b", 9)]


@pytest.mark.parametrize("seconds", [0.0, 0.04, 0.1, 5.0, 15.0])
def test_the_deadline_wakes_never_before_and_at_most_a_tick_late(
    polls: LongPolls, clock: FakeClock, woken: list[str], wake: Wake, seconds: float
) -> None:
    deadline = clock.now + seconds
    polls.park([("t", 0)], deadline, wake("a"))
    while not woken:
        assert clock.now < deadline + 2 * TICK_SECONDS
        clock.advance(0.01)
        polls.expire()
    assert clock.now >= deadline


def test_a_sweep_that_comes_late_wakes_all_that_are_over(
    polls: LongPolls, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    for number in range(5):
        polls.park([("t", number)], clock.now + number, wake(str(number)))
    clock.advance(2.5)
    polls.expire()
    assert woken == ["0", "1", "2"]


def test_a_newer_request_of_the_session_ends_the_older_one(
    polls: LongPolls, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    first = polls.park([("t", 0)], clock.now + 15, wake("a"), session="s", standing=True)
    second = polls.park([("t", 1)], clock.now + 15, wake("b"), session="s")
    assert (woken, first.superseded, second.superseded) == (["a"], True, False)
    polls.arrived([("t", 0)])
    assert woken == ["a"]
    polls.remove(second)
    polls.remove(second)
    polls.arrived([("t", 1)])
    assert woken == ["a"]
    assert len(polls) == 0


def test_who_is_woken_may_park_again_at_once(polls: LongPolls, clock: FakeClock, woken: list[str]) -> None:
    def again() -> None:
        woken.append("a")
        polls.park([("t", 0)], clock.now + 15, again)

    again()
    polls.arrived([("t", 0)])
    assert woken == ["a", "a"]
    clock.advance(16)
    polls.expire()
    assert woken == ["a", "a", "a"]
    assert len(polls) == 1


def test_who_waits_for_all_queues_of_a_topic_is_woken_by_any_of_them(
    polls: LongPolls, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    """It costs what one queue costs: a pop of 1,024 queues was parked, and taken out again, 2,048 times."""
    for name in ("a", "b"):
        polls.park([], clock.now + 15, wake(name), topics=["t", "t@g"])
    polls.park([("t", 3)], clock.now + 15, wake("c"))
    assert len(polls._by_queue) + len(polls._by_topic) == 3
    polls.arrived([("u", 3)])
    assert woken == []
    polls.arrived([("t", 3)])
    assert sorted(woken) == ["a", "b", "c"]
    polls.park([], clock.now + 15, wake("d"), topics=["t"])
    clock.advance(16)
    polls.expire()
    assert woken[3:] == ["d"]
    assert len(polls) == 0
