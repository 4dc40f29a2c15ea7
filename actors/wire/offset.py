"""The offset family: what a group has committed in a queue."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.errors import MessageNotFound
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group import QueryConsumerOffset, UpdateConsumerOffset
from raymq.actors.wire.server import Handler, ServerConnection
from raymq.actors.wire.told import number, number_in, reader


def query_offset_command(group: str, topic: str, queue_id: int) -> Command:
    """QUERY_CONSUMER_OFFSET; "never committed" is answered with QUERY_NOT_FOUND."""
    return QueryConsumerOffset(group, topic, queue_id, set_zero_if_not_found=False).command()


def update_offset_command(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    overrules_reset: bool = False,
    since: int | None = None,
    incarnation: int | None = None,
    epoch: int | None = None,
) -> Command:
    """UPDATE_CONSUMER_OFFSET: everything below `offset` is done; never back.

    Args:
        overrules_reset: the program itself chose this offset, and means it whatever an administrator did before.
        since: the group's offset as the consumer knows it; answered with OffsetReset if the group is before it.
        incarnation: of the topic as the consumer knows it; answered with OffsetReset if it was made anew.
        epoch: the recovery epoch under which all below `offset` was read; answered with OffsetReset if the broker's log
            has lost some of that. None or 0: it is not known.
    """
    return UpdateConsumerOffset(
        group,
        topic,
        queue_id,
        offset,
        forward_only=True,
        overrules_reset=overrules_reset,
        since=since,
        incarnation=incarnation,
        epoch=epoch or None,
    ).command()


def place(core: BrokerCore, topic: str, offset: int) -> dict[str, int]:
    """An offset as it is answered; with the topic's incarnation, if it is not the first of its name."""
    incarnation = core.store.incarnation(topic)
    return {"offset": offset, "raymqIncarnation": incarnation} if incarnation else {"offset": offset}


@reader
def read_place(answer: Command) -> tuple[int, int]:
    """An offset, and the topic's incarnation in which it is meant; ProtocolError."""
    return number_in(answer, "offset"), number(answer.fields.get("raymqIncarnation", 0))


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core, offsets = context.core, context.core.offsets

    def query_offset(_: ServerConnection, request: Command) -> Command:
        header = QueryConsumerOffset.read(request)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if header.set_zero_if_not_found:
            offset: int | None = offsets.start_of(group, topic, queue_id)
        else:
            offset = offsets.get(group, topic, queue_id)
        if offset is None:
            raise MessageNotFound(f"group {group} has no offset in queue {queue_id} of {topic}")
        return request.response(ResponseCode.SUCCESS, place(core, topic, offset))

    def update_offset(_: ServerConnection, request: Command) -> Command:
        header = UpdateConsumerOffset.read(request)
        core.bounds(header.topic, header.queue_id)  # raises: what is not there makes no group
        if header.forward_only:
            core.ensure_group(header.consumer_group)  # our own client's first commit makes its group
        done = offsets.commit(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.commit_offset,
            forward_only=header.forward_only,
            overrules_reset=header.overrules_reset,
            since=header.since,
            incarnation=header.incarnation,
            epoch=header.epoch,
        )
        return request.response(ResponseCode.SUCCESS, remark=None if done else "Offset has been previously reset")

    return {
        RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
        RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    }
