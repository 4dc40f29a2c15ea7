"""Test the table of prefetches: which fetch may take one, and which ones are cancelled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client.pull.pull_fetcher import MAX_PREFETCHED_QUEUES, PrefetchTable

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(MAX_PREFETCHED_QUEUES + 1)]


class Prefetch:
    def __init__(self) -> None:
        self.usable = True
        self.times_given_up = 0

    def is_usable(self, _: object) -> bool:
        return self.usable

    def give_up(self) -> None:
        self.times_given_up += 1


@pytest.fixture
def prefetches() -> Iterator[PrefetchTable]:
    table = PrefetchTable()
    yield table
    assert len(list(table)) <= MAX_PREFETCHED_QUEUES


def begin_prefetch(prefetches: PrefetchTable, queue: MessageQueue, offset: int = 7, max_messages: int = 10) -> Prefetch:
    prefetches.make_room(queue)
    prefetch = Prefetch()
    prefetches.put(queue, (offset, max_messages), prefetch)
    return prefetch


def test_prefetch_of_the_same_fetch_is_taken_once(prefetches: PrefetchTable) -> None:
    prefetch = begin_prefetch(prefetches, QUEUES[0])
    assert QUEUES[0] in prefetches
    assert prefetches.take(QUEUES[0], (7, 10), None) is prefetch
    assert prefetch.times_given_up == 0
    assert prefetches.take(QUEUES[0], (7, 10), None) is None


@pytest.mark.parametrize(("offset", "max_messages", "usable"), [(8, 10, True), (7, 9, True), (7, 10, False)])
def test_prefetch_that_does_not_fit_is_cancelled(
    prefetches: PrefetchTable, offset: int, max_messages: int, usable: bool
) -> None:
    prefetch = begin_prefetch(prefetches, QUEUES[0])
    prefetch.usable = usable
    assert prefetches.take(QUEUES[0], (offset, max_messages), None) is None
    assert prefetch.times_given_up == 1
    assert QUEUES[0] not in prefetches


def test_queue_has_one_prefetch_and_the_oldest_is_evicted(prefetches: PrefetchTable) -> None:
    first = begin_prefetch(prefetches, QUEUES[0])
    again = begin_prefetch(prefetches, QUEUES[0])
    assert (first.times_given_up, again.times_given_up) == (1, 0)
    others = [begin_prefetch(prefetches, queue) for queue in QUEUES[1:]]
    assert again.times_given_up == 1
    assert list(prefetches) == QUEUES[1:]
    prefetches.clear()
    assert [prefetch.times_given_up for prefetch in others] == [1] * MAX_PREFETCHED_QUEUES
    assert not list(prefetches)
