"""Test the buffer of popped messages: remaining lease times, renewal and order."""

from __future__ import annotations

from collections.abc import Sequence

from raymq.client.pop.pop_buffer import BufferedMessage, PopBuffer
from tests.received_messages import message


def offsets(popped: Sequence[BufferedMessage]) -> list[int]:
    return [each.message.queue_offset for each in popped]


def test_taken_messages_have_half_of_their_lease_left() -> None:
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


def test_take_skips_messages_popped_for_a_shorter_time() -> None:
    kept = PopBuffer(lambda: 0.0)
    kept.add([message(0)], 0.0, 2_000)
    kept.add([message(1)], 0.0, 600_000)
    assert (kept.count(600_000), kept.count(2_000)) == (1, 2)
    assert offsets(kept.take(9, 600_000)) == [1]
    assert offsets(kept.take(9, 2_000)) == [0]


def test_short_leases_are_renewed_for_a_limited_time() -> None:
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


def test_put_back_messages_are_taken_next_in_order() -> None:
    kept = PopBuffer(lambda: 0.0)
    kept.add([message(number) for number in range(4)], 0.0, 10_000)
    kept.put_back(kept.take(3, 10_000))
    assert offsets(kept.take(2, 10_000)) == [0, 1]
    assert [each.queue_offset for each in kept.empty()] == [2, 3]
    assert kept.count(0) == 0
