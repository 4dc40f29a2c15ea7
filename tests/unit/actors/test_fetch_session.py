"""Test fetch sessions over many queues: limits, order, skipped messages and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raymq.actors.broker.core.reading.fetch_session import FetchSession, QueueFetchResult
from raymq.actors.errors import OffsetOutOfRange, OffsetReset, QueueNotFound, TopicNotFound
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.tag_expression import TAG
from raymq.client import Message
from raymq.storage.tables.topic_config import TopicConfig
from tests.unit.actors.bench import Bench
from tests.unit.actors.filters import parse_filter

BOTH = [FetchSpec("t", 0, 0), FetchSpec("t", 1, 0)]
QUEUES = [("t", 0), ("t", 1)]


def tagged(tags: str) -> FetchSpec:
    return FetchSpec("t", 0, 0, parse_filter(TAG, tags).tags_codes)


def summarize(parts: list[QueueFetchResult]) -> list[tuple[int, int, list[int]]]:
    """Return the queue index, next offset and message offsets of each part."""
    return [(part.index, part.next_offset, part.offsets.tolist()) for part in parts]


def fill(bench: Bench, count: int, queue_id: int = 0) -> None:
    bench.append(*[Message("t", b"%d" % n, tags="ab"[n % 2]) for n in range(count)], queue_id=queue_id)


# -- one read -------------------------------------------------------------------------------------------------------


def test_fetch_reads_many_queues(bench: Bench) -> None:
    fill(bench, 4)
    fill(bench, 1, queue_id=1)
    parts = FetchSession(bench.core, BOTH, 100, 1 << 20).read_available()
    assert [(p.index, p.next_offset, len(p.sizes), p.max_offset) for p in parts] == [(0, 4, 4, 4), (1, 1, 1, 1)]
    assert [len(p.sizes) for p in FetchSession(bench.core, BOTH, 3, 1 << 20).read_available()] == [3]
    assert [part.index for part in FetchSession(bench.core, BOTH, 100, 1 << 20).read_available([("t", 1)])] == [1]
    assert FetchSession(bench.core, [FetchSpec("t", 0, 4), FetchSpec("t", 1, 1)], 100, 1 << 20).read_available() == []
    errors = FetchSession(
        bench.core, [FetchSpec("t", 0, 5), FetchSpec("t", 7, 0), FetchSpec("x", 0, 0)], 10, 1 << 20
    ).read_available()
    assert [type(part.error) for part in errors] == [OffsetOutOfRange, QueueNotFound, TopicNotFound]


def test_filtered_fetch_advances_past_skipped_messages(bench: Bench) -> None:
    fill(bench, 6)
    assert summarize(FetchSession(bench.core, [tagged("b")], 10, 1 << 20).read_available()) == [(0, 6, [1, 3, 5])]
    assert summarize(FetchSession(bench.core, [tagged("z")], 10, 1 << 20).read_available()) == [(0, 6, [])]


# -- repeated reads -------------------------------------------------------------------------------------------------


def test_session_returns_each_message_once_in_order(bench: Bench) -> None:
    fetch = FetchSession(bench.core, BOTH, 100, 1 << 20)
    assert fetch.read_available() == []
    fill(bench, 2, queue_id=1)
    fill(bench, 1)
    assert summarize(fetch.read_available([("t", 1), ("t", 0)])) == [(1, 2, [0, 1]), (0, 1, [0])]
    assert fetch.read_available(QUEUES) == []
    fill(bench, 2, queue_id=1)
    assert summarize(fetch.read_available([("t", 1)])) == [(1, 4, [2, 3])]
    assert not fetch.is_exhausted
    assert not fetch.has_backlog


@pytest.mark.parametrize(
    ("messages", "octets", "first", "second"),
    [
        (5, 1 << 20, [0, 1, 2], [3, 4]),
        (3, 1 << 20, [0, 1, 2], []),
        (2, 1 << 20, [0, 1], []),
        (99, 2_500, [0, 1], [2]),
        (99, 4_000, [0, 1, 2], [3]),
    ],
)
def test_limits_apply_to_all_reads_together(
    bench: Bench, messages: int, octets: int, first: list[int], second: list[int]
) -> None:
    fetch = FetchSession(bench.core, BOTH, messages, octets)
    for expected in (first, second):
        bench.append(*[Message("t", bytes(1_000)) for _ in range(3)])
        assert [offset for part in fetch.read_available(QUEUES) for offset in part.offsets.tolist()] == expected
    assert fetch.is_exhausted or fetch.has_backlog


def test_backlog_is_read_without_new_arrivals(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from raymq.storage.log import message_reader

    monkeypatch.setattr(message_reader, "SCAN_ENTRIES", 2)
    fill(bench, 10)
    fetch = FetchSession(bench.core, [tagged("z"), FetchSpec("t", 1, 0)], 2, 1 << 20)
    assert (summarize(fetch.read_available()), fetch.has_backlog) == ([(0, 2, [])], True)
    fill(bench, 1, queue_id=1)
    assert summarize(fetch.read_available([("t", 1)])) == [(0, 4, []), (1, 1, [0])]
    steps = [fetch.read_available(()) for _ in range(3)]
    assert [summarize(parts) for parts in steps] == [[(0, 6, [])], [(0, 8, [])], [(0, 10, [])]]
    assert not fetch.has_backlog


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (lambda bench: bench.core.reset_offset("g", "t", 0, 1), OffsetReset),
        (lambda bench: bench.core.topics.delete("t"), TopicNotFound),
        (lambda bench: bench.store.topic_configs.put(TopicConfig("t", 2, 2, perm=2)), Exception),
    ],
)
def test_unreadable_queue_ends_session(bench: Bench, happens: Callable[[Bench], None], error: type[Exception]) -> None:
    bench.core.ensure_group("g")
    fill(bench, 3)
    fetch = FetchSession(bench.core, BOTH, 100, 1 << 20, "g")
    assert summarize(fetch.read_available()) == [(0, 3, [0, 1, 2])]
    assert not fetch.is_exhausted
    happens(bench)
    (part,) = fetch.read_available([("t", 0)])
    assert isinstance(part.error, error)
    assert (part.next_offset, len(part.sizes), fetch.is_exhausted) == (3, 0, True)


# -- taking messages just stored ------------------------------------------------------------------------------------


def test_take_next_accepts_message_just_stored(bench: Bench) -> None:
    fetch = FetchSession(bench.core, BOTH, 3, 1 << 20)
    assert fetch.read_available() == []
    assert fetch.take_next(("t", 1), 0, 100) == 1
    fill(bench, 1, queue_id=1)
    assert fetch.read_available([("t", 1)]) == [], "it was given"
    fill(bench, 1)
    assert fetch.take_next(("t", 0), 1, 100) is None, "the one before it was not given"
    assert summarize(fetch.read_available([("t", 0)])) == [(0, 1, [0])]
    assert fetch.take_next(("t", 0), 1, 100) == 0
    assert fetch.is_exhausted
    assert fetch.take_next(("t", 0), 2, 100) is None


def test_take_next_counts_bytes(bench: Bench) -> None:
    fetch = FetchSession(bench.core, BOTH, 100, 1_000)
    assert fetch.take_next(("t", 0), 0, 999) == 0
    assert not fetch.is_exhausted
    assert fetch.take_next(("t", 1), 0, 999) == 1
    assert fetch.is_exhausted


def test_take_next_refuses_messages_that_need_a_read(bench: Bench) -> None:
    assert FetchSession(bench.core, [tagged("a")], 100, 1 << 20).take_next(("t", 0), 0, 100) is None
    fill(bench, 5)
    behind = FetchSession(bench.core, BOTH, 100, 1 << 20)
    behind._max_bytes = 150
    behind.read_available()
    assert behind.is_exhausted or behind.take_next(("t", 1), 0, 100) is None
    bench.core.ensure_group("g")
    bench.core.reset_offset("g", "t", 0, 2)
    sent_back = FetchSession(bench.core, [FetchSpec("t", 0, 5)], 100, 1 << 20, "g")
    assert sent_back.take_next(("t", 0), 5, 100) is None
    assert FetchSession(bench.core, [FetchSpec("t", 0, 5)], 100, 1 << 20).take_next(("t", 0), 5, 100) == 0
    bench.core.store.topic_configs.put(TopicConfig("t", 4, 4, perm=2))
    assert FetchSession(bench.core, [FetchSpec("t", 0, 5)], 100, 1 << 20).take_next(("t", 0), 5, 100) is None
