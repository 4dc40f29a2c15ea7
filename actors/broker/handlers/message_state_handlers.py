"""Report what waits for its time, and what groups have made of a message.

RayMQ's own commands.
"""

from __future__ import annotations

from typing import Final

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.core.delay.delayed_messages import BEGIN, DelayedMessages, Position
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.errors import InvalidInput
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.delay_commands import delayed_answer
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler
from raymq.storage.cooperative_steps import Steps

_MAX_LISTED: Final = 1_000


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core
    consumption = ConsumeStats(core, context.groups, context.statistics)
    delayed = DelayedMessages(core.store, core.schedule, core.timers)

    def list_delayed(_: ServerConnection, request: Command) -> Steps[Command]:
        topic, position = request.fields.get("topic"), _position(request.fields.get("begin"))
        most = min(_MAX_LISTED, max(1, int_field(request, "most")))
        page = yield from delayed.page_steps(position, None if topic is None else str(topic), most)
        return delayed_answer(request, page.records, page.due_ms, page.following)

    def states(_: ServerConnection, request: Command) -> Steps[Command]:
        topic, queue_id = text_field(request, "topic"), int_field(request, "queue_id")
        found = yield from consumption.message_states_steps(topic, queue_id, int_field(request, "offset"))
        return request.response(ResponseCode.SUCCESS, {"states": [list(each) for each in found.items()]})

    return {
        RequestCode.LIST_DELAYED: reads(coalescing_handler(list_delayed)),
        RequestCode.MESSAGE_STATES: reads(coalescing_handler(states)),
    }


def _position(begin: object) -> Position:
    """Return a position of a request; raise InvalidInput if it is none."""
    if begin is None:
        return BEGIN
    if isinstance(begin, list | tuple) and len(begin) == len(BEGIN):
        stage, first, second = begin
        if all(type(each) is int and -(1 << 63) <= each < 1 << 63 for each in (stage, first, second)):
            return stage, first, second
    raise InvalidInput("begin", "a position that an answer has named", begin)
