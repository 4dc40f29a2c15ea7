"""What was popped and not yet received: nobody gets it with its time half over, and nothing of it is forgotten."""

from __future__ import annotations

from raymq.client.kept import Kept
from tests.received import message


def test_what_is_taken_has_half_of_its_time_left() -> None:
    now = [100.0]
    kept = Kept(lambda: now[0])
    kept.add([message(0), message(1)], 100.0, 10.0)
    kept.add([message(2)], 103.0, 10.0)
    found, late = kept.take(1)
    assert ([each.message.queue_offset for each in found], late) == ([0], [])
    now[0] = 105.0
    kept.put_back(found)
    assert kept.count == 3
    found, late = kept.take(9)
    assert [each.message.queue_offset for each in found] == [2]
    assert [each.queue_offset for each in late] == [0, 1]


def test_what_did_not_arrive_is_the_next_ones_in_its_order() -> None:
    kept = Kept(lambda: 0.0)
    kept.add([message(number) for number in range(4)], 0.0, 10.0)
    found, _ = kept.take(3)
    kept.put_back(found)
    assert [each.message.queue_offset for each in kept.take(2)[0]] == [0, 1]
    assert [each.queue_offset for each in kept.empty()] == [2, 3]
    assert kept.count == 0
