"""Headers of the query family: messages by key and id, bounds of queues, offsets by time."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, header, named

FAR_FUTURE_MS = 1 << 62


@header(RequestCode.QUERY_MESSAGE)
class QueryMessage(Header):
    """Messages of a topic that carry `key`, or have it as their unique key."""

    topic: str
    key: str
    max_num: int = 64
    begin_timestamp: Long = 0
    end_timestamp: Long = FAR_FUTURE_MS
    unique_key: bool = named("_UNIQUE_KEY_QUERY", default=False)


@header(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessageById(Header):
    """The message at a place of the broker's log."""

    offset: Long
    topic: str | None = None


@header(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffsetByTimestamp(Header):
    """The first offset stored at or after a time (LOWER), or the last one at or before it (UPPER)."""

    topic: str
    queue_id: int
    timestamp: Long
    boundary_type: str = "LOWER"


@header(RequestCode.GET_MAX_OFFSET)
class GetMaxOffset(Header):
    """The next message's offset."""

    topic: str
    queue_id: int


@header(RequestCode.GET_MIN_OFFSET)
class GetMinOffset(Header):
    """The oldest message's offset."""

    topic: str
    queue_id: int


@header(RequestCode.GET_EARLIEST_MSG_STORETIME)
class GetEarliestStoreTime(Header):
    """When a queue's oldest message was stored."""

    topic: str
    queue_id: int


@header(RequestCode.QUERY_CONSUME_QUEUE)
class QueryConsumeQueue(Header):
    """Entries of a queue, as they lie."""

    topic: str
    queue_id: int
    index: Long
    count: int
    consumer_group: str | None = None
