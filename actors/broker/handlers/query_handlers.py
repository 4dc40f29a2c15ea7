"""Query messages by key and id, a queue's bounds, and offsets by time.

Answers carry records as they lie in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.broker.handlers.offset_handlers import place
from raymq.actors.errors import InvalidInput, MessageNotFound
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.query_headers import (
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumeQueue,
    QueryMessage,
    SearchOffsetByTimestamp,
    ViewMessageById,
)
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler
from raymq.storage.cooperative_steps import Steps

MAX_RESULTS = 10_000
#: Bytes of records in one answer; a frame holds a little more.
_MAX_RESULT_BYTES = 15 << 20


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    return {**_messages(context), **_places(context)}


def _messages(context: BrokerContext) -> Commands:
    core = context.core

    def query(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        header = QueryMessage.read(request)
        limit = min(MAX_RESULTS, max(1, header.max_num))
        window = header.begin_timestamp, header.end_timestamp
        found = yield from core.search(header.topic, header.key, *window, limit, _MAX_RESULT_BYTES)
        body = bytearray()
        for record in found:
            if record.physical_offset >= core.store.min_physical_offset:  # otherwise it expired meanwhile
                body += core.store.stored(record.physical_offset, record.size)
        if not body:
            raise MessageNotFound("can not find message, maybe time range not correct")
        fields = {
            "indexLastUpdateTimestamp": found[0].store_timestamp_ms,
            "indexLastUpdatePhyoffset": core.store.max_physical_offset,
        }
        return request.response(ResponseCode.SUCCESS, fields, bytes(body))

    def view(_: ServerConnection, request: Command) -> Command:
        return request.response(ResponseCode.SUCCESS, body=core.store.raw_at(ViewMessageById.read(request).offset))

    def entries(_: ServerConnection, request: Command) -> Command:
        header = QueryConsumeQueue.read(request)
        low, high = core.bounds(header.topic, header.queue_id)
        count = min(max(0, header.count), MAX_RESULTS, max(0, high - header.index))
        listed = []
        if count and header.index >= low:
            found = core.store.entries(header.topic, header.queue_id, header.index, count)
            for place, size, code in zip(*(column.tolist() for column in found), strict=True):
                listed.append({"physicOffset": place, "physicSize": size, "tagsCode": code})
        return json_body.answer(request, {"maxQueueIndex": high, "minQueueIndex": low, "queueData": listed})

    return {
        RequestCode.QUERY_MESSAGE: reads(coalescing_handler(query)),
        RequestCode.VIEW_MESSAGE_BY_ID: reads(view),
        RequestCode.QUERY_CONSUME_QUEUE: reads(entries),
    }


def _places(context: BrokerContext) -> Commands:
    core = context.core
    consumption = ConsumeStats(core, context.groups, context.statistics)

    def by_time(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        header = SearchOffsetByTimestamp.read(request)
        boundary = header.boundary_type.lower()
        if boundary not in ("lower", "upper"):
            raise InvalidInput("boundaryType", "LOWER or UPPER", header.boundary_type)
        offset = yield from core.search_time(
            header.topic, header.queue_id, header.timestamp, boundary="upper" if boundary == "upper" else "lower"
        )
        return request.response(ResponseCode.SUCCESS, place(core, header.topic, offset))

    def newest(_: ServerConnection, request: Command) -> Command:
        header = GetMaxOffset.read(request)
        return request.response(
            ResponseCode.SUCCESS, place(core, header.topic, core.bounds(header.topic, header.queue_id)[1])
        )

    def oldest(_: ServerConnection, request: Command) -> Command:
        header = GetMinOffset.read(request)
        return request.response(
            ResponseCode.SUCCESS, place(core, header.topic, core.bounds(header.topic, header.queue_id)[0])
        )

    def earliest(_: ServerConnection, request: Command) -> Command:
        header = GetEarliestStoreTime.read(request)
        low, _high = core.bounds(header.topic, header.queue_id)
        stored_ms = consumption.store_time(header.topic, header.queue_id, low)
        return request.response(ResponseCode.SUCCESS, {"timestamp": stored_ms or -1})

    return {
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: reads(coalescing_handler(by_time)),
        RequestCode.GET_MAX_OFFSET: reads(newest),
        RequestCode.GET_MIN_OFFSET: reads(oldest),
        RequestCode.GET_EARLIEST_MSG_STORETIME: reads(earliest),
    }
