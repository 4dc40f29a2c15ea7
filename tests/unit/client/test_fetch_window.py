"""Test how many messages are fetched ahead, and when."""

from __future__ import annotations

import pytest

from raymq.client.push.process_queue import MAX_BYTES, MAX_PARKED, MAX_SPAN, MAX_SPAN_PARKED, FetchWindow, ProcessQueue
from tests.received_messages import QUEUE, message


@pytest.mark.parametrize(
    ("messages", "in_flight", "parked", "size_bytes", "span", "room", "is_worth"),
    [
        (1_000, 0, 0, 0, 0, 1_000, True),
        (1_000, 1, 0, 1, 1, 999, True),
        (1_000, 250, 0, 1, 250, 750, True),
        (1_000, 251, 0, 1, 251, 749, False),
        (1_000, 999, 0, 1, 999, 1, False),
        (1_000, 1_000, 0, 1, 1_000, 0, False),
        (1_000, 1_500, 0, 1, 1_500, 0, False),
        (1_000, 10, 0, MAX_BYTES - 1, 10, 990, True),
        (1_000, 10, 0, MAX_BYTES, 10, 0, False),
        (1_000, 10, 0, 1, MAX_SPAN - 1, 990, True),
        (1_000, 10, 0, 1, MAX_SPAN, 0, False),
        (1_000, 1_200, 1_000, 1, MAX_SPAN, 800, True),  # parked messages do not count
        (1_000, MAX_PARKED, MAX_PARKED, 1, MAX_SPAN, 0, False),
        (1_000, 10, 1, 1, MAX_SPAN_PARKED, 0, False),
        (1, 0, 0, 0, 0, 1, True),  # a slow rate
        (1, 1, 0, 1, 1, 0, False),
        (3, 1, 0, 1, 1, 2, True),
        (8, 3, 0, 1, 3, 5, False),
    ],
)
def test_room_left_and_when_a_fetch_is_worthwhile(
    messages: int, in_flight: int, parked: int, size_bytes: int, span: int, room: int, is_worth: bool
) -> None:
    window = FetchWindow(messages)
    assert window.room(in_flight, parked, size_bytes, span) == room
    assert (room >= window.worth) is is_worth
    below = window.worth_below(room)
    assert not is_worth or in_flight - parked <= below, "nobody looks in vain, and nobody fails to look"
    if not is_worth and room:
        assert in_flight - parked > below


def test_waiting_only_window_counts_waiting_messages() -> None:
    process = ProcessQueue(QUEUE, 0, FetchWindow(2, waiting_only=True))
    for first in range(0, 20, 2):
        assert process.room == 2
        process.extend([message(first), message(first + 1)], [10, 10])
        assert (process.room, process.has_room) == (0, False)
        process.take(1)
        assert process.room == 1
        process.take(1)
    assert process.in_flight == 20
    assert process.lacking < 0, "each call that begins may make room"


def test_each_call_may_make_a_prefetch_worthwhile() -> None:
    """Check for room after each call that begins, even if some room is left."""
    process = ProcessQueue(QUEUE, 0, FetchWindow(8, waiting_only=True))
    process.extend([message(offset) for offset in range(8)], [10] * 8)
    process.take(1)
    assert (process.room, process.has_room) == (1, False)
    for left in range(1, 6):
        assert process.lacking <= 0, "else nobody looks whether there is room"
        process.take(1)
        assert process.has_room is (left == 5)


def test_fetches_stay_within_the_window_and_are_few() -> None:
    """The listener finishes one message at a time, and the queue always has more."""
    process = ProcessQueue(QUEUE, 0)
    fetches = 0
    for done in range(10_000):
        if process.has_room:
            fetches += 1
            first = process.next_offset
            process.extend([message(offset) for offset in range(first, first + process.room)], [10] * process.room)
        assert process.in_flight <= process.window.messages
        process.take(1)
        process.finish(done)
    assert fetches <= 10_000 / process.window.worth + 1
