"""Test the attributes of spans against OpenTelemetry's semantic conventions of messaging."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.actors.errors import NotStored, OutcomeUnknown
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.client.message import Message, ReceivedMessage
from raymq.client.push.failures import CallFailure
from raymq.client.push.traced_listener import error_type
from raymq.client.results import SendResult
from raymq.client.tracing import span_attributes

QUEUE = MessageQueue("t", "broker-a", 3)


def received(**values: Any) -> ReceivedMessage:
    known: dict[str, Any] = {
        "topic": "t",
        "body": b"body",
        "tags": None,
        "keys": [],
        "properties": {},
        "system_properties": {},
        "message_id": "0A",
        "unique_key": "1B",
        "queue": QUEUE,
        "queue_offset": 7,
        "physical_offset": 99,
        "born_timestamp": 1.0,
        "store_timestamp": 2.0,
        "reconsume_times": 0,
    }
    return ReceivedMessage(**{**known, **values})


def test_send_of_one_message() -> None:
    message = Message("t", b"body", tags="paid", keys=["k1", "k2"], unique_key="1B")
    assert span_attributes.of_sent([message], "p") == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ["k1", "k2"],
        "messaging.rocketmq.message.type": "normal",
        "raymq.message.unique_key": "1B",
        "raymq.producer.group": "p",
    }


def test_delayed_sends_name_their_delay() -> None:
    level = span_attributes.of_sent([Message("t", b"body", delay_level=2)], "p")
    assert level["messaging.rocketmq.message.type"] == "delay"
    assert level["messaging.rocketmq.message.delay_time_level"] == 2
    timed = span_attributes.of_sent([Message("t", b"body", deliver_at=1.5)], "p")
    assert timed["messaging.rocketmq.message.delivery_timestamp"] == 1_500


def test_batch_has_a_count_and_no_message() -> None:
    sent = span_attributes.of_sent([Message("t", b"body", tags="paid")] * 3, "p", is_batch=True)
    assert sent["messaging.batch.message_count"] == 3
    consumed = span_attributes.of_received("process", "process", [received(), received(queue_offset=8)], "g")
    assert consumed["messaging.batch.message_count"] == 2
    for found in (sent, consumed):
        assert not found.keys() & {"messaging.message.body.size", "messaging.message.id", "raymq.message.try"}


@pytest.mark.parametrize(("status", "expected"), [("SEND_OK", None), ("FLUSH_DISK_TIMEOUT", "FLUSH_DISK_TIMEOUT")])
def test_result_names_queue_and_message(status: str, expected: str | None) -> None:
    found = span_attributes.of_result(SendResult(SendStatus(status), "0A", "1B", QUEUE, 7))
    assert found["messaging.destination.partition.id"] == "broker-a:3"
    assert found["messaging.message.id"] == "0A"
    assert found.get("raymq.send.status") == expected


def test_retry_carries_its_number() -> None:
    found = span_attributes.of_received("process", "process", [received(reconsume_times=2)], "g")
    assert found["raymq.message.try"] == 3
    assert found["messaging.consumer.group.name"] == "g"
    assert found["messaging.destination.partition.id"] == "broker-a:3"


@pytest.mark.parametrize(
    ("system", "kind"),
    [
        ({}, "normal"),
        ({"DELAY": "3"}, "delay"),
        ({"DELAY": "0"}, "normal"),
        ({"TIMER_DELIVER_MS": "5"}, "delay"),
        ({"TRAN_MSG": "true"}, "transaction"),
        ({"__SHARDINGKEY": "k"}, "fifo"),
    ],
)
def test_type_of_received_messages(system: dict[str, str], kind: str) -> None:
    found = span_attributes.of_received("process", "process", [received(system_properties=system)], "g")
    assert found["messaging.rocketmq.message.type"] == kind


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotStored("no"), "NotStored"),
        (OutcomeUnknown("who knows"), "OutcomeUnknown"),
        (ValueError(), "ValueError"),
    ],
)
def test_error_type_is_the_code_or_the_class(error: BaseException, expected: str) -> None:
    assert span_attributes.of_error(error) == expected


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (CallFailure.raised(ValueError("secret")), "ValueError"),
        (CallFailure.asked_for("RECONSUME_LATER", 0), "asked"),
        (CallFailure.no_result(None), "returned None"),
        (CallFailure.timed_out(5), "time-out"),
    ],
)
def test_error_type_of_failed_calls(failure: CallFailure, expected: str) -> None:
    assert error_type(failure) == expected
