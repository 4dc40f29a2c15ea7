"""The query family: messages by key and by id, a queue's bounds, offsets by time. Answers carry records as they lie."""

from __future__ import annotations

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.query import (
    GetMaxOffset,
    GetMinOffset,
    QueryMessage,
    SearchOffsetByTimestamp,
    ViewMessageById,
)
from raymq.actors.wire.told import reader
from raymq.storage.records.record import Record, decode


def query_command(topic: str, key: str, begin_ms: int, end_ms: int, limit: int, *, unique: bool) -> Command:
    """QUERY_MESSAGE: messages of a topic that carry `key`, or have it as their unique key."""
    return QueryMessage(topic, key, limit, begin_ms, end_ms, unique).command()


def view_command(physical_offset: int) -> Command:
    """VIEW_MESSAGE_BY_ID: the message at a place of the broker's log."""
    return ViewMessageById(physical_offset).command()


def time_command(topic: str, queue_id: int, timestamp_ms: int) -> Command:
    """SEARCH_OFFSET_BY_TIMESTAMP: the first offset stored at or after a time."""
    return SearchOffsetByTimestamp(topic, queue_id, timestamp_ms).command()


def bound_command(topic: str, queue_id: int, *, newest: bool) -> Command:
    """GET_MAX_OFFSET or GET_MIN_OFFSET."""
    return (GetMaxOffset(topic, queue_id) if newest else GetMinOffset(topic, queue_id)).command()


@reader
def read_records(answer: Command) -> list[Record]:
    """The records in an answer of this family."""
    body = memoryview(answer.body)
    found = []
    position = 0
    while position < len(body):
        record = decode(body, position)
        found.append(record)
        position += record.size
    return found
