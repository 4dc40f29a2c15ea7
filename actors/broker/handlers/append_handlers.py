"""Handle APPEND_RECORDS (RayMQ's own): store records of one queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.handlers.broker_command import Commands, appends
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.append_commands import appended_answer, read_sizes
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection

#: How many records of one request may be delayed, by a time or a level: each is encoded again, in some 25 us of the
#: loop, and RayMQ's producers send one at most.
MAX_DELAYED: Final = 100


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core

    def append(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        topic, queue_id = text_field(request, "topic"), int_field(request, "queue_id")
        delayed = bool(request.fields.get("delayed"))
        sizes = read_sizes(request)
        if delayed and len(sizes) > MAX_DELAYED:
            raise InvalidInput("sizes", f"at most {MAX_DELAYED} delayed records", len(sizes))
        sequenced = bool(request.fields.get("sequenced"))

        def store() -> Callable[[SendStatus], Command]:
            records = memoryview(request.body)
            placed = core.append(topic, queue_id, records, sizes, delayed=delayed, sequenced=sequenced)
            context.statistics.put(topic, len(sizes), len(request.body))
            return lambda status: appended_answer(request, status, placed)

        return context.append(len(request.body), store)

    return {RequestCode.APPEND_RECORDS: appends(append)}
