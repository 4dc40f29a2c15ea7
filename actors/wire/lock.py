"""The locking family: queues that are consumed in order belong to one client at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command


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


def _body(client_id: str, group: str, queues: Iterable[MessageQueue]) -> bytes:
    told = [{"topic": q.topic, "brokerName": q.broker, "queueId": q.queue_id} for q in queues]
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": told, "onlyThisBroker": False}
    return json.dumps(body).encode()
