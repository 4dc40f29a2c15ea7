"""The lock family: which client consumes a queue in order. Bodies in RocketMQ's shapes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.context import BrokerContext
from raymq.actors.wire.frame import Command
from raymq.actors.wire.json_body import answer, queue_object, read_object
from raymq.actors.wire.server import Handler, ServerConnection


def lock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """LOCK_BATCH_MQ: take or renew the locks of queues of one broker."""
    return Command(RequestCode.LOCK_BATCH_MQ, body=_body(client_id, group, queues))


def unlock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """UNLOCK_BATCH_MQ: give locks back."""
    return Command(RequestCode.UNLOCK_BATCH_MQ, body=_body(client_id, group, queues))


def read_locked(answer: Command) -> list[MessageQueue]:
    """The queues that an answer to LOCK_BATCH_MQ says are held."""
    held = json.loads(bytes(answer.body))["lockOKMQSet"]
    return [MessageQueue(each["topic"], each["brokerName"], each["queueId"]) for each in held]


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    locks = context.core.locks

    def lock(_: ServerConnection, request: Command) -> Command:
        group, client_id, queues = _read(read_object(request.body))
        held = locks.lock(group, client_id, [(queue.topic, queue.queue_id) for queue in queues])
        granted = [queue_object(queue) for queue in queues if (queue.topic, queue.queue_id) in held]
        return answer(request, {"lockOKMQSet": granted})

    def unlock(_: ServerConnection, request: Command) -> Command:
        group, client_id, queues = _read(read_object(request.body))
        locks.unlock(group, client_id, [(queue.topic, queue.queue_id) for queue in queues])
        return request.response(ResponseCode.SUCCESS)

    return {RequestCode.LOCK_BATCH_MQ: lock, RequestCode.UNLOCK_BATCH_MQ: unlock}


def _body(client_id: str, group: str, queues: Iterable[MessageQueue]) -> bytes:
    told = [queue_object(queue) for queue in queues]
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": told, "onlyThisBroker": False}
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
