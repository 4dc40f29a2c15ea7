"""The lock family: which client consumes a queue in order. Bodies in RocketMQ's shapes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.context import BrokerContext
from raymq.actors.wire.frame import Command
from raymq.actors.wire.group import greet
from raymq.actors.wire.json_body import answer, queue_object, read_object
from raymq.actors.wire.server import Handler, ServerConnection


def lock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """LOCK_BATCH_MQ: take or renew the locks of queues of one broker."""
    return Command(RequestCode.LOCK_BATCH_MQ, body=_body(client_id, group, queues, raymqTerms=True))


def unlock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """UNLOCK_BATCH_MQ: give locks back."""
    return Command(RequestCode.UNLOCK_BATCH_MQ, body=_body(client_id, group, queues))


def read_locked(answer: Command) -> list[MessageQueue]:
    """The queues that an answer to LOCK_BATCH_MQ says are held."""
    held = json.loads(bytes(answer.body))["lockOKMQSet"]
    return [MessageQueue(each["topic"], each["brokerName"], each["queueId"]) for each in held]


def read_terms(answer: Command) -> dict[MessageQueue, int]:
    """As `read_locked`, with the term of each lock: see `raymq.actors.core.locks`."""
    return dict(zip(read_locked(answer), json.loads(bytes(answer.body))["raymqTerms"], strict=True))


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    locks = context.core.locks

    def lock(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        told = read_object(request.body)
        group, client_id, queues = _read(told)
        # A lock falls with the client's last connection, so the broker has to know the one that this came over.
        greet(context.groups, client_id, connection, request)

        def give() -> Command:
            known = [(q.topic, q.queue_id) for q in queues if context.core.has_queue(q.topic, q.queue_id)]
            held = locks.lock(group, client_id, known)
            granted = [queue for queue in queues if (queue.topic, queue.queue_id) in held]
            body: dict[str, Any] = {"lockOKMQSet": [queue_object(queue) for queue in granted]}
            if told.get("raymqTerms"):
                body["raymqTerms"] = [held[queue.topic, queue.queue_id] for queue in granted]
            return answer(request, body)

        async def give_later() -> Command:
            await asyncio.sleep(locks.rest_seconds)
            return give()

        return give_later() if locks.rest_seconds > 0 else give()

    def unlock(_: ServerConnection, request: Command) -> Command:
        group, client_id, queues = _read(read_object(request.body))
        locks.unlock(group, client_id, [(queue.topic, queue.queue_id) for queue in queues])
        return request.response(ResponseCode.SUCCESS)

    return {RequestCode.LOCK_BATCH_MQ: lock, RequestCode.UNLOCK_BATCH_MQ: unlock}


def _body(client_id: str, group: str, queues: Iterable[MessageQueue], **ours: bool) -> bytes:
    told = [queue_object(queue) for queue in queues]
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": told, "onlyThisBroker": False, **ours}
    return json.dumps(body).encode()


def _read(body: Mapping[str, Any]) -> tuple[str, str, list[MessageQueue]]:
    """Group, client id and queues of a request's body."""
    client_id, items = body.get("clientId"), body.get("mqSet") or []
    if not isinstance(client_id, str) or not client_id:
        raise InvalidInput("clientId", "a client's id", client_id)
    try:
        queues = [MessageQueue(str(item["topic"]), str(item["brokerName"]), int(item["queueId"])) for item in items]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("mqSet", "a list of queues", items) from error
    return check_group(body.get("consumerGroup")), client_id, queues
