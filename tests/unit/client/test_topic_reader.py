"""Test the offsets and ranges at which an Admin reads a topic, without a broker."""

from __future__ import annotations

import asyncio

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client.admin import dead_letter_requests, topic_reader
from raymq.client.connection import Connection
from raymq.client.requests.offset_requests import OffsetRequests

QUEUE = MessageQueue("t", "b", 0)
LETTERS = MessageQueue("%DLQ%g", "b", 0)


@pytest.mark.parametrize(("committed", "begin"), [(None, 10), (3, 10), (15, 15), (25, 20)])
def test_group_start_offset_lies_within_the_queue(
    monkeypatch: pytest.MonkeyPatch, committed: int | None, begin: int
) -> None:
    """The start moves to the queue's first message if unread messages have expired."""

    async def exists(*_: object) -> None:
        pass

    async def commit(*_: object) -> tuple[int, int] | None:
        return None if committed is None else (committed, 0)

    monkeypatch.setattr(topic_reader, "check_exists", exists)
    monkeypatch.setattr(OffsetRequests, "committed", commit)
    with Connection(["127.0.0.1:1"]) as mq:
        assert asyncio.run(topic_reader._offsets(mq, {QUEUE: (10, 20)}, "group:g")) == {QUEUE: begin}


@pytest.mark.parametrize(
    ("start", "end", "ranges"),
    [
        (0, 10, [(0, 2), (4, 6), (7, 10)]),
        (5, 10, [(5, 6), (7, 10)]),
        (3, 5, [(4, 5)]),
        (2, 4, []),
        (8, 9, [(8, 9)]),
        (8, 8, []),
    ],
)
def test_deleted_dead_letters_are_excluded_from_reads(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int, ranges: list[tuple[int, int]]
) -> None:
    """The reads begin at the start, and deleted ranges within are left out."""

    async def deleted(*_: object) -> list[tuple[int, int]]:
        return [(2, 4), (6, 7)]

    monkeypatch.setattr(dead_letter_requests, "deleted", deleted)
    with Connection(["127.0.0.1:1"]) as mq:
        assert asyncio.run(topic_reader._ranges(mq, LETTERS, start, end)) == ranges
        assert asyncio.run(topic_reader._ranges(mq, QUEUE, start, end)) == ([(start, end)] if start < end else [])
