"""Handle the offsets that a group has committed in a queue."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import MessageNotFound
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import QueryConsumerOffset, UpdateConsumerOffset
from raymq.actors.wire.server_connection import ServerConnection


def place(core: BrokerCore, topic: str, offset: int) -> dict[str, int]:
    """Return the answer's fields for an offset.

    They include the topic's incarnation, if it is not the first of its name.
    """
    incarnation = core.store.incarnation(topic)
    return {"offset": offset, "raymqIncarnation": incarnation} if incarnation else {"offset": offset}


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core, offsets = context.core, context.core.offsets

    def query_offset(_: ServerConnection, request: Command) -> Command:
        header = QueryConsumerOffset.read(request)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if header.set_zero_if_not_found:
            offset: int | None = offsets.initial_offset(group, topic, queue_id)
        else:
            offset = offsets.get(group, topic, queue_id)
        if offset is None:
            raise MessageNotFound(f"group {group} has no offset in queue {queue_id} of {topic}")
        return request.response(ResponseCode.SUCCESS, place(core, topic, offset))

    def update_offset(_: ServerConnection, request: Command) -> Command:
        header = UpdateConsumerOffset.read(request)
        core.bounds(header.topic, header.queue_id)  # raises for a missing queue, before a group is created
        if header.forward_only:
            core.ensure_group(header.consumer_group)  # the first commit of RayMQ's own client creates its group
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
        RequestCode.QUERY_CONSUMER_OFFSET: reads(query_offset),
        RequestCode.UPDATE_CONSUMER_OFFSET: changes(update_offset),
    }
