"""Headers of the query family.

The commands look up messages by key and id, bounds of queues, and offsets by time.
"""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header, wire_field

FAR_FUTURE_MS = 1 << 62


@header(RequestCode.QUERY_MESSAGE)
class QueryMessage(Header):
    """Fields of the request for a topic's messages with a key.

    `key` is one of a message's keys, or with `unique_key` its unique key.
    """

    topic: str
    key: str
    max_num: int = 64
    begin_timestamp: Long = 0
    end_timestamp: Long = FAR_FUTURE_MS
    unique_key: bool = wire_field("_UNIQUE_KEY_QUERY", default=False)


@header(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageById(Header):
    """Fields of the request for the message at a physical offset of the broker's log."""

    offset: Long
    topic: str | None = None


@header(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetByTimestamp(Header):
    """Fields of the request for a queue's offset at a time.

    It is the first offset stored at or after the time (LOWER), or the last one at or before it (UPPER).
    """

    topic: str
    queue_id: int
    timestamp: Long
    boundary_type: str = "LOWER"


@header(RequestCode.GET_MAX_OFFSET)
class GetMaxOffset(Header):
    """Fields of the request for the offset that a queue's next message will get."""

    topic: str
    queue_id: int


@header(RequestCode.GET_MIN_OFFSET)
class GetMinOffset(Header):
    """Fields of the request for the offset of a queue's oldest message."""

    topic: str
    queue_id: int


@header(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestStoreTime(Header):
    """Fields of the request for the time at which a queue's oldest message was stored."""

    topic: str
    queue_id: int


@header(RequestCode.QUERY_CONSUME_QUEUE)
class QueryConsumeQueue(Header):
    """Fields of the request for entries of a consume queue, in their stored form."""

    topic: str
    queue_id: int
    index: Long
    count: int
    consumer_group: str | None = None
