"""Test that arrivals, deadlines and newer requests of a session wake each parked request once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from raymq.actors.broker.core.reading.long_poll import TICK_SECONDS, LongPollingService, QueueKey, TakeNext
from tests.unit.actors.clock import FakeClock
from tests.validation import validated


@pytest.fixture
def polls(clock: FakeClock) -> Iterator[LongPollingService]:
    with validated(LongPollingService(clock)) as made:
        yield made


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def wake(woken: list[str]) -> Callable[[str], Callable[[], None]]:
    return lambda name: lambda: woken.append(name)


Wake = Callable[[str], Callable[[], None]]


def test_arrival_wakes_request_parked_on_queue(
    polls: LongPollingService, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    first = polls.park([("t", 0), ("t", 1)], clock.now + 15, wake("a"))
    second = polls.park([("t", 2)], clock.now + 15, wake("b"))
    polls.arrived([("t", 1), ("t", 0), ("u", 0)])
    assert woken == ["a"]
    assert (list(first.take_arrivals()), first.ended) == ([("t", 1)], True)
    assert (list(second.take_arrivals()), second.ended) == ([], False)
    assert len(polls) == 1


def test_standing_request_is_woken_once_until_it_takes(
    polls: LongPollingService, clock: FakeClock, woken: list[str], wake: Wake
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


def test_offered_message_is_taken_by_one_request(
    polls: LongPollingService, clock: FakeClock, woken: list[str], wake: Wake
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
def test_deadline_never_wakes_early_and_at_most_a_tick_late(
    polls: LongPollingService, clock: FakeClock, woken: list[str], wake: Wake, seconds: float
) -> None:
    deadline = clock.now + seconds
    polls.park([("t", 0)], deadline, wake("a"))
    while not woken:
        assert clock.now < deadline + 2 * TICK_SECONDS
        clock.advance(0.01)
        polls.expire()
    assert clock.now >= deadline


def test_late_sweep_wakes_all_expired_requests(
    polls: LongPollingService, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    for number in range(5):
        polls.park([("t", number)], clock.now + number, wake(str(number)))
    clock.advance(2.5)
    polls.expire()
    assert woken == ["0", "1", "2"]


def test_newer_request_of_session_supersedes_older(
    polls: LongPollingService, clock: FakeClock, woken: list[str], wake: Wake
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


def test_woken_request_may_park_again_at_once(polls: LongPollingService, clock: FakeClock, woken: list[str]) -> None:
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


def test_request_parked_on_topic_is_woken_by_any_queue(
    polls: LongPollingService, clock: FakeClock, woken: list[str], wake: Wake
) -> None:
    """Park a topic as one entry: a pop of 1,024 queues was parked 2,048 times."""
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


class Turns:
    """Run deferred calls turn by turn, when the test says so."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def later(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)

    def give(self) -> bool:
        """Run one turn; return False when no call was waiting."""
        calls, self._waiting = self._waiting, []
        for call in calls:
            call()
        return bool(calls)


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def stepped_polls(clock: FakeClock, turns: Turns) -> Iterator[LongPollingService]:
    with validated(LongPollingService(clock, turns.later)) as made:
        yield made


MAX_PER_TURN = 4_000


def test_many_requests_are_woken_over_several_turns(
    stepped_polls: LongPollingService, clock: FakeClock, turns: Turns
) -> None:
    """Guard against loop stops of 0.2 s per message with 100,000 requests on a queue."""
    woken: list[int] = []
    for number in range(20_000):
        stepped_polls.park([("t", 0)], clock.now + 15, lambda number=number: woken.append(number))  # type: ignore[misc]
    stepped_polls.arrived([("t", 0)])
    most = [len(woken)]
    while turns.give():
        most.append(len(woken) - sum(most))
    assert sorted(woken) == list(range(20_000))
    assert max(most) <= MAX_PER_TURN
    assert len(stepped_polls) == 0


def test_request_parked_again_is_woken_by_later_arrival(
    stepped_polls: LongPollingService, clock: FakeClock, turns: Turns
) -> None:
    """Wake a request once however much arrives: pending wakeups do not grow with arrivals."""
    woken = [0] * 10_000

    def park(number: int) -> None:
        stepped_polls.park([("t", 0)], clock.now + 15, lambda: wake(number))

    def wake(number: int) -> None:
        woken[number] += 1
        park(number)

    for number in range(len(woken)):
        park(number)
    for _ in range(50):
        stepped_polls.arrived([("t", 0)])
    while turns.give():
        pass
    assert set(woken) == {2}
    stepped_polls.arrived([("t", 0), ("u", 0)])
    while turns.give():
        pass
    assert set(woken) == {3}
    assert not stepped_polls._waking
    assert not stepped_polls._again


def test_wakeups_of_one_queue_do_not_delay_others(
    stepped_polls: LongPollingService, clock: FakeClock, turns: Turns
) -> None:
    woken: list[str] = []
    for _ in range(10_000):
        stepped_polls.park([("t", 0)], clock.now + 15, lambda: None)
    stepped_polls.park([("u", 0)], clock.now + 15, lambda: woken.append("u"))
    stepped_polls.arrived([("t", 0)])
    stepped_polls.arrived([("u", 0)])
    assert woken == ["u"]
    while turns.give():
        pass


def test_expired_requests_are_woken_over_several_turns(
    stepped_polls: LongPollingService, clock: FakeClock, turns: Turns
) -> None:
    woken: list[int] = []
    queues = [("t", number) for number in range(100)]
    for number in range(500):
        stepped_polls.park(queues, clock.now + 15, lambda number=number: woken.append(number))  # type: ignore[misc]
    clock.advance(16)
    stepped_polls.expire()
    first = len(woken)
    stepped_polls.expire()  # the next sweep begins before the wakeups are done
    assert first == len(woken) <= MAX_PER_TURN // 100
    while turns.give():
        pass
    assert sorted(woken) == list(range(500))


def test_message_is_offered_to_limited_number_of_requests(polls: LongPollingService, clock: FakeClock) -> None:
    offered: list[int] = []

    def refuse(_: QueueKey, offset: int, __: int, ___: int) -> bool:
        offered.append(offset)
        return False

    for _ in range(1_000):
        polls.park([("t", 0)], clock.now + 15, lambda: None, standing=True, take_next=refuse)
    polls.offer(("t", 0), 7, 0, 100)
    assert 1 <= len(offered) <= 100


def test_failing_wakeup_does_not_stop_other_queues(
    stepped_polls: LongPollingService, clock: FakeClock, turns: Turns
) -> None:
    """Guard against a failure in the first step that stopped this and all later queues."""
    woken: list[str] = []

    def fails() -> None:
        woken.append("fails")
        raise MemoryError

    for queue in (0, 1):
        stepped_polls.park([("t", queue)], clock.now + 15, fails)
        for _ in range(2):
            stepped_polls.park([("t", queue)], clock.now + 15, lambda: woken.append("woken"))
    failures = 0
    for wakes in (lambda: stepped_polls.arrived([("t", 0), ("t", 1), ("t", 0)]), *[turns.give] * 4):
        try:
            wakes()
        except MemoryError:
            failures += 1
    assert failures == 2
    assert sorted(woken) == ["fails"] * 2 + ["woken"] * 4
    assert not stepped_polls._waking
    assert not stepped_polls._again


def test_failing_wakeup_does_not_stop_other_requests(
    stepped_polls: LongPollingService, clock: FakeClock, turns: Turns
) -> None:
    woken: list[int] = []

    def wake(number: int) -> None:
        woken.append(number)
        if number == 0:
            raise MemoryError

    for number in range(10_000):
        stepped_polls.park([("t", 0)], clock.now + 15, lambda number=number: wake(number))  # type: ignore[misc]
    failures = 0
    try:
        stepped_polls.arrived([("t", 0)])
    except MemoryError:
        failures += 1
    while True:
        try:
            if not turns.give():
                break
        except MemoryError:
            failures += 1
    assert failures == 1
    assert sorted(woken) == list(range(10_000))
