"""REDRIVE_DEAD_LETTERS, our own: entries of a group's dead-letter queue go to the group again."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from raymq.actors.broker.context import BrokerContext, text
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import Redriven
from raymq.actors.request_limits import MAX_REDRIVEN, check_count
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.server import Handler, ServerConnection
from raymq.actors.wire.told import reader


def redrive_command(group: str, offsets: Sequence[int], *, force: bool, dry_run: bool) -> Command:
    """The entries at these offsets of the group's dead-letter queue."""
    fields = {"group": group, "offsets": list(offsets), "force": force, "dry_run": dry_run}
    return Command(RequestCode.REDRIVE_DEAD_LETTERS, fields, serialization=Serialization.MSGPACK)


@reader
def read_redriven(answer: Command) -> list[Redriven]:
    """What was done, for each offset."""
    return [Redriven(word) for word in answer.fields["told"]]


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""

    def redrive(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        offsets = request.fields.get("offsets")
        if not isinstance(offsets, list) or not all(isinstance(offset, int) for offset in offsets):
            raise InvalidInput("offsets", "a list of queue offsets", offsets)
        check_count("offsets", "dead letters", len(offsets), MAX_REDRIVEN)
        told = context.core.dead_letters.redrive(
            text(request, "group"),
            offsets,
            force=bool(request.fields.get("force")),
            dry_run=bool(request.fields.get("dry_run")),
        )
        fields = {"told": [each.value for each in told]}
        return context.when_settled(lambda _: request.response(ResponseCode.SUCCESS, fields))

    return {RequestCode.REDRIVE_DEAD_LETTERS: redrive}
