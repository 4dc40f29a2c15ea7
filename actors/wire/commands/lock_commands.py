"""The lock family: which client may consume a queue in order; bodies in RocketMQ's shapes."""

from __future__ import annotations

import json
from collections.abc import Iterable

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import response_validation
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.json_body import queue_object


def lock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """Return LOCK_BATCH_MQ: acquire or renew the locks of queues of one broker."""
    return Command(RequestCode.LOCK_BATCH_MQ, body=_body(client_id, group, queues, raymqTerms=True))


def unlock_command(client_id: str, group: str, queues: Iterable[MessageQueue]) -> Command:
    """Return UNLOCK_BATCH_MQ: release locks."""
    return Command(RequestCode.UNLOCK_BATCH_MQ, body=_body(client_id, group, queues))


@response_validation.protocol_checked
def read_locked(answer: Command) -> list[MessageQueue]:
    """Return the locked queues in an answer to LOCK_BATCH_MQ.

    Raise ProtocolError if they are invalid.
    """
    return response_validation.read_list(
        response_validation.read_json_answer(answer)["lockOKMQSet"], response_validation.parse_queue
    )


@response_validation.protocol_checked
def read_terms(answer: Command) -> dict[MessageQueue, int]:
    """Return the locked queues as `read_locked`, with the term of each lock.

    `raymq.actors.broker.core.groups.rebalance_lock_manager` describes terms.
    """
    terms = response_validation.read_list(
        response_validation.read_json_answer(answer)["raymqTerms"], response_validation.number
    )
    return dict(zip(read_locked(answer), terms, strict=True))


def _body(client_id: str, group: str, queues: Iterable[MessageQueue], **ours: bool) -> bytes:
    named = [queue_object(queue) for queue in queues]
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": named, "onlyThisBroker": False, **ours}
    return json.dumps(body).encode()
