"""Redrive or delete dead letters of a group (RayMQ's own commands)."""

from __future__ import annotations

from collections.abc import Awaitable

from raymq.actors.broker.context import BrokerContext, text_field
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group, dlq_topic
from raymq.actors.request_limits import MAX_REDRIVEN, check_count
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import steps_handler
from raymq.storage.cooperative_steps import Steps


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""

    def redrive(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        offsets = _offsets(request)
        statuses = yield from context.core.dead_letters.redrive_steps(
            text_field(request, "group"),
            offsets,
            force=bool(request.fields.get("force")),
            dry_run=bool(request.fields.get("dry_run")),
        )
        fields = {"told": [each.value for each in statuses]}
        return context.when_durable(lambda _: request.response(ResponseCode.SUCCESS, fields))

    def delete(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        count = yield from context.core.dead_letters.delete_steps(text_field(request, "group"), _offsets(request))
        return context.when_durable(lambda _: request.response(ResponseCode.SUCCESS, {"deleted": count}))

    def deleted_range_steps(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        ranges = yield from context.core.dead_letters.deleted_range_steps(
            dlq_topic(check_group(text_field(request, "group")))
        )
        return request.response(ResponseCode.SUCCESS, {"ranges": [list(each) for each in ranges]})

    return {
        RequestCode.REDRIVE_DEAD_LETTERS: changes(steps_handler(redrive)),
        RequestCode.DELETE_DEAD_LETTERS: changes(steps_handler(delete)),
        RequestCode.DELETED_DEAD_LETTERS: reads(steps_handler(deleted_range_steps)),
    }


def _offsets(request: Command) -> list[int]:
    offsets = request.fields.get("offsets")
    if not isinstance(offsets, list) or not all(isinstance(offset, int) for offset in offsets):
        raise InvalidInput("offsets", "a list of queue offsets", offsets)
    check_count("offsets", "dead letters", len(offsets), MAX_REDRIVEN)
    return offsets
