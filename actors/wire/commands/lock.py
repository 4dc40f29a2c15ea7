"""The lock family: which client consumes a queue in order. Bodies in RocketMQ's shapes."""

from __future__ import annotations

import json
from collections.abc import Iterable

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import told
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.json_body import queue_object


def lock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """LOCK_BATCH_MQ: take or renew the locks of queues of one broker."""
    return Command(RequestCode.LOCK_BATCH_MQ, body=_body(client_id, group, queues, raymqTerms=True))


def unlock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """UNLOCK_BATCH_MQ: give locks back."""
    return Command(RequestCode.UNLOCK_BATCH_MQ, body=_body(client_id, group, queues))


@told.reader
def read_locked(answer: Command) -> list[MessageQueue]:
    """The queues that an answer to LOCK_BATCH_MQ says are held; ProtocolError."""
    return told.listed(told.told_in(answer)["lockOKMQSet"], told.queue_of)


@told.reader
def read_terms(answer: Command) -> dict[MessageQueue, int]:
    """As `read_locked`, with the term of each lock: see `raymq.actors.broker.core.groups.locks`."""
    terms = told.listed(told.told_in(answer)["raymqTerms"], told.number)
    return dict(zip(read_locked(answer), terms, strict=True))


def _body(client_id: str, group: str, queues: Iterable[MessageQueue], **ours: bool) -> bytes:
    named = [queue_object(queue) for queue in queues]
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": named, "onlyThisBroker": False, **ours}
    return json.dumps(body).encode()
