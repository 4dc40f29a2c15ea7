"""The query family: messages by key and by id, a queue's bounds, offsets by time.

Answers with messages have records in their stored form.
"""

from __future__ import annotations

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.query_headers import (
    GetMaxOffset,
    GetMinOffset,
    QueryMessage,
    SearchOffsetByTimestamp,
    ViewMessageById,
)
from raymq.actors.wire.response_validation import protocol_checked
from raymq.storage.records.record import Record, decode


def query_command(topic: str, key: str, begin_ms: int, end_ms: int, limit: int, *, unique: bool) -> Command:
    """Return QUERY_MESSAGE: a topic's messages with `key` as a key.

    With `unique` it is their unique key.
    """
    return QueryMessage(topic, key, limit, begin_ms, end_ms, unique).command()


def view_message_command(physical_offset: int) -> Command:
    """Return VIEW_MESSAGE_BY_ID: the message at a physical offset of the broker's log."""
    return ViewMessageById(physical_offset).command()


def offset_by_time_command(topic: str, queue_id: int, timestamp_ms: int) -> Command:
    """Return SEARCH_OFFSET_BY_TIMESTAMP: the first offset stored at or after a time."""
    return SearchOffsetByTimestamp(topic, queue_id, timestamp_ms).command()


def offset_bound_command(topic: str, queue_id: int, *, newest: bool) -> Command:
    """Return GET_MAX_OFFSET or GET_MIN_OFFSET."""
    return (GetMaxOffset(topic, queue_id) if newest else GetMinOffset(topic, queue_id)).command()


@protocol_checked
def read_records(answer: Command) -> list[Record]:
    """Return the records in an answer of this family."""
    body = memoryview(answer.body)
    found = []
    position = 0
    while position < len(body):
        record = decode(body, position)
        found.append(record)
        position += record.size
    return found
