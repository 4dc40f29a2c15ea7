"""What was popped and not yet received: nobody gets it with its time half over, and nothing of it is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from raymq.client.pop.pop_buffer import BufferedMessage, PopBuffer
from tests.received_messages import message


def offsets(popped: Sequence[BufferedMessage]) -> list[int]:
    return [each.message.queue_offset for each in popped]


def test_what_is_taken_has_half_of_its_time_left() -> None:
    now = [100.0]
    kept = PopBuffer(lambda: now[0])
    assert kept.add([message(0), message(1)], 100.0, 12_000) == 106.0
    kept.add([message(2)], 103.0, 12_000)
    found = kept.take(1, 12_000)
    assert offsets(found) == [0]
    assert kept.late() == ([], [])
    now[0] = 106.0
    kept.put_back(found)
    assert kept.count(12_000) == 3
    assert offsets(kept.take(9, 12_000)) == [2]
    renewed, given_back = kept.late()
    assert (renewed, offsets(given_back)) == ([], [0, 1])


def test_nobody_gets_what_was_popped_for_less_than_it_wants() -> None:
    kept = PopBuffer(lambda: 0.0)
    kept.add([message(0)], 0.0, 2_000)
    kept.add([message(1)], 0.0, 600_000)
    assert (kept.count(600_000), kept.count(2_000)) == (1, 2)
    assert offsets(kept.take(9, 600_000)) == [1]
    assert offsets(kept.take(9, 2_000)) == [0]


def test_what_was_popped_for_a_short_time_is_renewed_for_a_while() -> None:
    now = [1.0]
    kept = PopBuffer(lambda: now[0])
    kept.add([message(0)], 0.0, 2_000)
    (late,), given_back = kept.late()
    assert given_back == []
    assert kept.count(0) == 0, "while it is renewed nobody gets it"
    assert kept.renewed(late, 1.2) == 2.2
    assert offsets(kept.take(9, 2_000)) == [0]
    kept.put_back([late])
    now[0] = 5.0
    renewed, given_back = kept.late()
    assert (renewed, offsets(given_back)) == ([], [0])


def test_what_did_not_arrive_is_the_next_ones_in_its_order() -> None:
    kept = PopBuffer(lambda: 0.0)
    kept.add([message(number) for number in range(4)], 0.0, 10_000)
    kept.put_back(kept.take(3, 10_000))
    assert offsets(kept.take(2, 10_000)) == [0, 1]
    assert [each.queue_offset for each in kept.empty()] == [2, 3]
    assert kept.count(0) == 0
