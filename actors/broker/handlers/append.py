"""APPEND_RECORDS (ours): records of one queue are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from raymq.actors.broker.context import BrokerContext, integer, text
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.append import appended_answer, read_sizes
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection

#: So many records of one request may wait for a time or a level: each is made anew, in some 25 us of the loop, and none
#: of our producers sends more than one.
MOST_DELAYED: Final = 100


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core

    def append(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        topic, queue_id = text(request, "topic"), integer(request, "queue_id")
        delayed = bool(request.fields.get("delayed"))
        sizes = read_sizes(request)
        if delayed and len(sizes) > MOST_DELAYED:
            raise InvalidInput("sizes", f"at most {MOST_DELAYED} records that are delayed", len(sizes))
        append_ = core.append_sequenced if request.fields.get("sequenced") else core.append

        def store() -> Callable[[SendStatus], Command]:
            placed = append_(topic, queue_id, memoryview(request.body), sizes, delayed=delayed)
            context.statistics.put(topic, len(sizes), len(request.body))
            return lambda status: appended_answer(request, status, placed)

        return context.append(len(request.body), store)

    return {RequestCode.APPEND_RECORDS: append}
