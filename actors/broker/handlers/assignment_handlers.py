"""Assign queues to members on the broker instead of in the clients.

A member asks which queues it reads, and whether it pulls or pops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import InvalidInput, PermissionDenied, RayMQError
from raymq.actors.naming import RETRY_PREFIX, check_group, check_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.queue_allocation import ALLOCATION_STRATEGIES
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import ANY_QUEUE
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.tables.request_mode import POP, PULL, RequestMode

_CLUSTERING, _BROADCASTING = "CLUSTERING", "BROADCASTING"


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    modes = context.core.store.request_modes
    #: Held while another thread writes a mode.
    writing = asyncio.Lock()

    async def query_assignment(_: ServerConnection, request: Command) -> Command:
        data = json_body.read_object(request.body)
        topic, group = _names(data)
        mode = modes.get(topic, group).mode
        try:
            queues = (await context.route(topic)).readable()
            assigned: Iterable[MessageQueue] | None = _assigned(context, data, queues, mode, group)
        except RayMQError:  # no route, no members: the client keeps its assignment
            assigned = None
        answer = None if assigned is None else [_assignment(queue, mode) for queue in assigned]
        return json_body.answer(request, {"messageQueueAssignments": answer})

    async def set_mode(_: ServerConnection, request: Command) -> Command:
        data = json_body.read_object(request.body)
        topic, group = _names(data)
        mode, share = data.get("mode"), data.get("popShareQueueNum", 0)
        if topic.startswith(RETRY_PREFIX):
            raise PermissionDenied("a retry topic is always pulled")
        if mode not in (POP, PULL):
            raise InvalidInput("mode", f"{POP} or {PULL}", mode)
        if not isinstance(share, int):
            raise InvalidInput("popShareQueueNum", "a whole number", share)
        context.core.topic(topic)
        if context.core.ensure_group(group):
            await context.announce()
        async with writing:
            await asyncio.to_thread(modes.put, RequestMode(topic, group, mode, share))
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.QUERY_ASSIGNMENT: reads(query_assignment),
        RequestCode.SET_MESSAGE_REQUEST_MODE: changes(set_mode),
    }


def _names(data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the topic and the group of a request."""
    return check_topic(json_body.require_text(data, "topic")), check_group(
        json_body.require_text(data, "consumerGroup")
    )


def _assigned(
    context: BrokerContext, data: Mapping[str, Any], queues: list[MessageQueue], mode: str, group: str
) -> Iterable[MessageQueue]:
    """Return the queues of the requesting member.

    In pop mode every member pops from every broker, each with all of its queues.
    """
    if data.get("messageModel") == _BROADCASTING:
        return queues
    members = context.groups.members(group)
    if mode == POP:
        return sorted({MessageQueue(queue.topic, queue.broker, ANY_QUEUE) for queue in queues})
    strategy = ALLOCATION_STRATEGIES.get(str(data.get("strategyName")))
    if strategy is None:
        raise InvalidInput("strategyName", " or ".join(ALLOCATION_STRATEGIES), data.get("strategyName"))
    return strategy(queues, members, str(data.get("clientId")))


def _assignment(queue: MessageQueue, mode: str) -> dict[str, Any]:
    return {"attachments": None, "messageQueue": json_body.queue_object(queue), "mode": mode}
