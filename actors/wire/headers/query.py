"""Headers of the query family: messages by key and id, bounds of queues, offsets by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, named

FAR_FUTURE_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class QueryMessage(Header):
    """Messages of a topic that carry `key`, or have it as their unique key."""

    CODE: ClassVar = RequestCode.QUERY_MESSAGE
    topic: str
    key: str
    max_num: int = 64
    begin_timestamp: Long = 0
    end_timestamp: Long = FAR_FUTURE_MS
    unique_key: bool = named("_UNIQUE_KEY_QUERY", default=False)


@dataclass(frozen=True, slots=True)
class ViewMessageById(Header):
    """The message at a place of the broker's log."""

    CODE: ClassVar = RequestCode.VIEW_MESSAGE_BY_ID
    offset: Long
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class SearchOffsetByTimestamp(Header):
    """The first offset stored at or after a time (LOWER), or the last one at or before it (UPPER)."""

    CODE: ClassVar = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    topic: str
    queue_id: int
    timestamp: Long
    boundary_type: str = "LOWER"


@dataclass(frozen=True, slots=True)
class GetMaxOffset(Header):
    """The next message's offset."""

    CODE: ClassVar = RequestCode.GET_MAX_OFFSET
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class GetMinOffset(Header):
    """The oldest message's offset."""

    CODE: ClassVar = RequestCode.GET_MIN_OFFSET
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class GetEarliestStoreTime(Header):
    """When a queue's oldest message was stored."""

    CODE: ClassVar = RequestCode.GET_EARLIEST_MSG_STORETIME
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueryConsumeQueue(Header):
    """Entries of a queue, as they lie."""

    CODE: ClassVar = RequestCode.QUERY_CONSUME_QUEUE
    topic: str
    queue_id: int
    index: Long
    count: int
    consumer_group: str | None = None
