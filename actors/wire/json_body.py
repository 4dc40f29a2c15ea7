"""Bodies that are JSON objects: RocketMQ's shapes, written as strict JSON, which its clients read as well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Buffer, Command


def read_object(body: Buffer) -> dict[str, Any]:
    """The object in a body; InvalidInput if it is none."""
    try:
        value = json.loads(bytes(body))
    except ValueError as error:
        raise InvalidInput("body", "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object", type(value).__name__)
    return value


def answer(request: Command, value: Mapping[str, Any], fields: dict[str, Any] | None = None) -> Command:
    """SUCCESS with `value` as body."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return request.response(ResponseCode.SUCCESS, fields, body)


def queue_object(queue: MessageQueue) -> dict[str, Any]:
    """A queue as RocketMQ's object."""
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}


def queue_key(queue: MessageQueue) -> str:
    """A queue as the key of a map: its object, quoted."""
    return json.dumps(queue_object(queue), separators=(",", ":"))


def read_queue_key(key: str) -> MessageQueue:
    """The reverse of `queue_key`."""
    told = json.loads(key)
    return MessageQueue(told["topic"], told["brokerName"], told["queueId"])
