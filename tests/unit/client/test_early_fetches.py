"""What was begun early for queues: who may have it, and what is given up instead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client.requests.prefetch_table import MAX_PREFETCHED_QUEUES, PrefetchTable

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(MAX_PREFETCHED_QUEUES + 1)]


class Begun:
    def __init__(self) -> None:
        self.usable = True
        self.times_given_up = 0

    def give_up(self) -> None:
        self.times_given_up += 1


@pytest.fixture
def ahead() -> Iterator[PrefetchTable[Begun]]:
    made: PrefetchTable[Begun] = PrefetchTable(Begun.give_up, lambda begun: begun.usable)
    yield made
    assert len(made) <= MAX_PREFETCHED_QUEUES


def begin(ahead: PrefetchTable[Begun], queue: MessageQueue, offset: int = 7, max_messages: int = 10) -> Begun:
    ahead.make_room(queue)
    begun = Begun()
    ahead.put(queue, offset, max_messages, begun)
    return begun


def test_what_was_begun_for_this_very_fetch_is_the_callers(ahead: PrefetchTable[Begun]) -> None:
    begun = begin(ahead, QUEUES[0])
    assert QUEUES[0] in ahead
    assert ahead.take(QUEUES[0], 7, 10) is begun
    assert begun.times_given_up == 0
    assert ahead.take(QUEUES[0], 7, 10) is None


@pytest.mark.parametrize(("offset", "max_messages", "usable"), [(8, 10, True), (7, 9, True), (7, 10, False)])
def test_another_one_is_given_up(ahead: PrefetchTable[Begun], offset: int, max_messages: int, usable: bool) -> None:
    begun = begin(ahead, QUEUES[0])
    begun.usable = usable
    assert ahead.take(QUEUES[0], offset, max_messages) is None
    assert begun.times_given_up == 1
    assert QUEUES[0] not in ahead


def test_a_queue_has_one_and_the_one_longest_ago_makes_room(ahead: PrefetchTable[Begun]) -> None:
    first = begin(ahead, QUEUES[0])
    again = begin(ahead, QUEUES[0])
    assert (first.times_given_up, again.times_given_up) == (1, 0)
    others = [begin(ahead, queue) for queue in QUEUES[1:]]
    assert again.times_given_up == 1
    assert list(ahead) == QUEUES[1:]
    ahead.clear()
    assert [begun.times_given_up for begun in others] == [1] * MAX_PREFETCHED_QUEUES
    assert not ahead
