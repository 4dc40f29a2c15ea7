"""Handle locks: which client consumes a queue in order, in RocketMQ's formats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.broker.handlers.group_handlers import register_client
from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group
from raymq.actors.protocol import MessageQueue
from raymq.actors.request_limits import MAX_LOCKED, check_count
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.json_body import answer, queue_object, read_object, require_text
from raymq.actors.wire.server_connection import ServerConnection

#: Enough values for MAX_LOCKED queues, and for some more, so that a larger request gets the proper error.
_MAX_VALUES = 5 * MAX_LOCKED


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    locks = context.core.locks

    def lock(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        data = read_object(request.body, max_values=_MAX_VALUES)
        group, client_id, queues = _read_queues(data)
        context.groups.check_not_superseded(group, client_id)
        # A client's locks end with its last connection, so the broker must have registered this one.
        register_client(context.groups, client_id, connection, request)
        known = [(q.topic, q.queue_id) for q in queues if context.core.has_queue(q.topic, q.queue_id)]
        locked = locks.lock(group, client_id, known)
        granted = [queue for queue in queues if (queue.topic, queue.queue_id) in locked]
        body: dict[str, Any] = {"lockOKMQSet": [queue_object(queue) for queue in granted]}
        if data.get("raymqTerms"):
            body["raymqTerms"] = [locked[queue.topic, queue.queue_id] for queue in granted]
        response = answer(request, body)
        return response if not locks.blocked_seconds else _tell_later(response, locks.blocked_seconds)

    def unlock(_: ServerConnection, request: Command) -> Command:
        group, client_id, queues = _read_queues(read_object(request.body, max_values=_MAX_VALUES))
        locks.unlock(group, client_id, [(q.topic, q.queue_id) for q in queues])
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.LOCK_BATCH_MQ: reads(lock),
        RequestCode.UNLOCK_BATCH_MQ: reads(unlock),
    }


async def _tell_later(response: Command, seconds: float) -> Command:
    """Delay the answer: clients with locks from before the restart may still work so long."""
    await asyncio.sleep(seconds)
    return response


def _read_queues(body: Mapping[str, Any]) -> tuple[str, str, list[MessageQueue]]:
    """Return group, client id and queues of a request's body."""
    client_id, items = body.get("clientId"), body.get("mqSet") or []
    if not isinstance(client_id, str) or not client_id:
        raise InvalidInput("clientId", "a client id", client_id)
    try:
        check_count("mqSet", "queues", len(items), MAX_LOCKED)
        queues = [_queue(item) for item in items]
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("mqSet", "a list of queues", items) from error
    return check_group(require_text(body, "consumerGroup")), client_id, queues


def _queue(item: Mapping[str, Any]) -> MessageQueue:
    return MessageQueue(str(item["topic"]), str(item["brokerName"]), int(item["queueId"]))
