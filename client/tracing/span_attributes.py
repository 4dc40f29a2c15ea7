"""Build the attributes of spans, by OpenTelemetry's semantic conventions of messaging.

https://opentelemetry.io/docs/specs/semconv/messaging/ names them, and those of RocketMQ. What has no name there begins
with `raymq.`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.client.message import Message, ReceivedMessage
from raymq.client.results import SendResult
from raymq.storage.records import property_names as names

Attributes: TypeAlias = dict[str, str | int | float | bool | Sequence[str]]

OPERATION_NAME: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_DESTINATION: Final = "messaging.destination.name"
_PARTITION: Final = "messaging.destination.partition.id"
_GROUP: Final = "messaging.consumer.group.name"
_MESSAGE_ID: Final = "messaging.message.id"
_BODY_SIZE: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
_TAG: Final = "messaging.rocketmq.message.tag"
_KEYS: Final = "messaging.rocketmq.message.keys"
_TYPE: Final = "messaging.rocketmq.message.type"
_DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
_DELIVERY_TIME: Final = "messaging.rocketmq.message.delivery_timestamp"
MODEL: Final = "messaging.rocketmq.consumption_model"
NAMESPACE: Final = "messaging.rocketmq.namespace"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"
_UNIQUE_KEY: Final = "raymq.message.unique_key"
#: The number of the delivery: 1 for the first one, 2 for the first retry.
TRY: Final = "raymq.message.try"
_PRODUCER_GROUP: Final = "raymq.producer.group"
#: The status of a message that is stored, but not as safely as it was asked for.
_STATUS: Final = "raymq.send.status"
#: Why a message failed that is retried or dead.
FAILURE: Final = "raymq.failure"
FAILED_MESSAGES: Final = "raymq.batch.failed_message_count"


def operation(name: str, kind: str, topic: str) -> Attributes:
    """Return what every span has.

    Args:
        name: the operation's name, such as "send".
        kind: its type in the conventions: "send", "receive", "process" or "settle".
    """
    return {"messaging.system": "rocketmq", OPERATION_NAME: name, _OPERATION_TYPE: kind, _DESTINATION: topic}


def partition_id(queue: MessageQueue) -> str:
    """Return the id of a queue, unique within its topic."""
    return f"{queue.broker}:{queue.queue_id}"


def of_sent(messages: Sequence[Message], group: str, *, is_batch: bool = False, kind: str | None = None) -> Attributes:
    """Return the attributes of a send that are known before it.

    Args:
        kind: RocketMQ's message type; None: normal or delay, by the message.
    """
    first = messages[0]
    found = operation("send", "send", first.topic) | {_PRODUCER_GROUP: group}
    if is_batch:
        found[BATCH_COUNT] = len(messages)
    else:
        found |= _of_message(first.tags, first.keys, len(first.body))
        found[_UNIQUE_KEY] = first.unique_key
        if first.delay_level:
            found[_DELAY_LEVEL] = first.delay_level
        if first.due_ms is not None:
            found[_DELIVERY_TIME] = first.due_ms
    found[_TYPE] = kind or ("delay" if first.is_delayed else "normal")
    return found


def of_rows(topic: str, group: str | None) -> Attributes:
    """Return the attributes of a send of the rows of a table."""
    found = operation("send", "send", topic)
    return found if group is None else found | {_PRODUCER_GROUP: group}


def of_result(result: SendResult) -> Attributes:
    """Return the attributes of a stored message."""
    found: Attributes = {_PARTITION: partition_id(result.queue), _MESSAGE_ID: result.message_id}
    if result.status is not SendStatus.SEND_OK:
        found[_STATUS] = result.status.value
    return found


def of_received(name: str, kind: str, messages: Sequence[ReceivedMessage], group: str | None) -> Attributes:
    """Return the attributes of an operation on received messages of one topic."""
    first = messages[0]
    found = operation(name, kind, first.topic)
    if group is not None:
        found[_GROUP] = group
    queues = {message.queue for message in messages}
    if len(queues) == 1:
        found[_PARTITION] = partition_id(first.queue)
    if len(messages) > 1:
        return found | {BATCH_COUNT: len(messages)}
    found |= _of_message(first.tags, first.keys, len(first.body))
    found |= {_MESSAGE_ID: first.message_id, _TYPE: _type_of(first.system_properties), TRY: first.reconsume_times + 1}
    if first.unique_key is not None:
        found[_UNIQUE_KEY] = first.unique_key
    return found


def of_redriven(topic: str, message_id: str, group: str) -> Attributes:
    """Return the attributes of the redrive of a dead letter."""
    return operation("redrive", "settle", topic) | {_GROUP: group, _MESSAGE_ID: message_id}


def of_error(error: BaseException) -> str:
    """Return the `error.type` of an exception: RocketMQ's code if it has one, else its class."""
    code = error.code if isinstance(error, RayMQError) else None
    return code or type(error).__name__


def _of_message(tags: str | None, keys: Sequence[str], body_bytes: int) -> Attributes:
    found: Attributes = {_BODY_SIZE: body_bytes}
    if tags is not None:
        found[_TAG] = tags
    if keys:
        found[_KEYS] = list(keys)
    return found


def _type_of(system: Mapping[str, str]) -> str:
    """Return RocketMQ's message type of a received message."""
    if system.get(names.TRAN_MSG) == "true":
        return "transaction"
    if names.TIMER_DELIVER_MS in system or system.get(names.DELAY, "0") != "0":
        return "delay"
    return "fifo" if names.SHARDING_KEY in system else "normal"
