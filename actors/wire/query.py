"""The query family: messages by key and by id, a queue's bounds, offsets by time. Answers carry records as they lie."""

from __future__ import annotations

from collections.abc import Iterable

from raymq.actors.core.broker import BrokerCore
from raymq.actors.errors import MessageNotFound
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.context import BrokerContext, integer, text
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import Handler, ServerConnection
from raymq.storage.record import Record, decode

MAX_RESULTS = 10_000


def query_command(topic: str, key: str, begin_ms: int, end_ms: int, limit: int, *, unique: bool) -> Command:
    """QUERY_MESSAGE: messages of a topic that carry `key`, or have it as their unique key."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": limit,
        "beginTimestamp": begin_ms,
        "endTimestamp": end_ms,
        "_UNIQUE_KEY_QUERY": unique,
    }
    return Command(RequestCode.QUERY_MESSAGE, fields)


def view_command(physical_offset: int) -> Command:
    """VIEW_MESSAGE_BY_ID: the message at a place of the broker's log."""
    return Command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset})


def time_command(topic: str, queue_id: int, timestamp_ms: int) -> Command:
    """SEARCH_OFFSET_BY_TIMESTAMP: the first offset stored at or after a time."""
    fields = {"topic": topic, "queueId": queue_id, "timestamp": timestamp_ms, "boundaryType": "LOWER"}
    return Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)


def bound_command(topic: str, queue_id: int, *, newest: bool) -> Command:
    """GET_MAX_OFFSET or GET_MIN_OFFSET."""
    code = RequestCode.GET_MAX_OFFSET if newest else RequestCode.GET_MIN_OFFSET
    return Command(code, {"topic": topic, "queueId": queue_id})


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


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core

    def query(_: ServerConnection, request: Command) -> Command:
        limit = min(MAX_RESULTS, max(1, integer(request, "maxNum", 64)))
        begin_ms, end_ms = integer(request, "beginTimestamp", 0), integer(request, "endTimestamp", 1 << 62)
        key = text(request, "key")
        found = core.query(text(request, "topic"), key, begin_ms, end_ms, limit)
        if not found:
            raise MessageNotFound("can not find message, maybe time range not correct")
        fields = {"indexLastUpdateTimestamp": found[0].store_timestamp_ms, "indexLastUpdatePhyoffset": 0}
        return request.response(ResponseCode.SUCCESS, fields, _joined(core, found))

    def view(_: ServerConnection, request: Command) -> Command:
        return request.response(ResponseCode.SUCCESS, body=core.store.raw_at(integer(request, "offset")))

    def by_time(_: ServerConnection, request: Command) -> Command:
        offset = core.offset_at_time(text(request, "topic"), integer(request, "queueId"), integer(request, "timestamp"))
        return request.response(ResponseCode.SUCCESS, {"offset": offset})

    def newest(_: ServerConnection, request: Command) -> Command:
        bounds = core.range(text(request, "topic"), integer(request, "queueId"))
        return request.response(ResponseCode.SUCCESS, {"offset": bounds.max_offset})

    def oldest(_: ServerConnection, request: Command) -> Command:
        bounds = core.range(text(request, "topic"), integer(request, "queueId"))
        return request.response(ResponseCode.SUCCESS, {"offset": bounds.min_offset})

    return {
        RequestCode.QUERY_MESSAGE: query,
        RequestCode.VIEW_MESSAGE_BY_ID: view,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: by_time,
        RequestCode.GET_MAX_OFFSET: newest,
        RequestCode.GET_MIN_OFFSET: oldest,
    }


def _joined(core: BrokerCore, records: Iterable[Record]) -> bytes:
    return b"".join(core.store.raw_at(record.physical_offset) for record in records)
