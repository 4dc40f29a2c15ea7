"""Test messages: their rules, their encoding, and the received message."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import time
import weakref
from typing import Any

import numpy as np
import pytest

from raymq.client import InvalidInput, Message, MessageQueue, ReceivedMessage, Retry
from raymq.client.message import MessageFields, PlainMessageFields
from raymq.client.produce.transaction import half_of
from raymq.storage.records import message_limits
from raymq.storage.records.message_limits import MAX_MESSAGE_BYTES
from raymq.storage.records.record import decode

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "a/b"}, "topic"),
        ({"topic": ".."}, "topic"),
        ({"topic": "t" * 128}, "topic"),
        ({"topic": "tä"}, "topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "topic"),
        ({"body": b""}, "body"),
        ({"body": bytes(MAX_MESSAGE_BYTES + 1)}, "body"),
        ({"tags": " "}, "tags"),
        ({"tags": "a||b"}, "tags"),
        ({"tags": "a\x01b"}, "tags"),
        ({"keys": ["a b"]}, "keys"),
        ({"keys": [""]}, "keys"),
        ({"keys": "a b"}, "keys"),
        ({"keys": ["a\x02"]}, "keys"),
        ({"properties": {"TAGS": "x"}}, "properties"),
        ({"properties": {"": "x"}}, "properties"),
        ({"properties": {"a": "x\x00"}}, "properties"),
        ({"properties": {"a\x01": "x"}}, "properties"),
        ({"properties": {"a": "x" * 32_767}}, "properties"),
        ({"delay_level": -1}, "delay_level"),
    ],
)
def test_invalid_message_field_raises_invalid_input(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Message(**{"topic": "t", "body": b"x", **arguments})
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "arguments",
    [{"body": "text"}, {"topic": 1}, {"keys": [1]}, {"tags": 1}, {"properties": {"a": 1}}, {"delay_level": "1"}],
)
def test_message_field_of_a_wrong_type_raises_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Message(**{"topic": "t", "body": b"x", **arguments})


def test_numpy_numbers_are_accepted() -> None:
    soon = time.time() + 60.0
    assert Message("t", b"x", deliver_at=np.float64(soon)).deliver_at == soon
    assert Message("t", b"x", deliver_at=np.int64(soon)).deliver_at == int(soon)
    level = Message("t", b"x", delay_level=np.int64(3)).delay_level
    assert (type(level), level) == (int, 3)
    with pytest.raises(InvalidInput, match="milliseconds"):
        Message("t", b"x", deliver_at=np.int64(soon * 1000))


def test_received_message_equals_the_sent_one() -> None:
    message = Message("t", b"body", tags="täg", keys=["k1", "k2"], properties={"a": "b", "ü": "ß"})
    received = ReceivedMessage.from_record(decode(message.encode(1_700_000_000_123, HOST)), "broker-a")
    assert received.topic == "t"
    assert received.body == b"body"
    assert received.tags == "täg"
    assert received.keys == ["k1", "k2"]
    assert received.properties == {"a": "b", "ü": "ß"}
    assert received.unique_key == message.unique_key
    assert received.born_timestamp == 1_700_000_000.123
    assert received.queue == MessageQueue("t", "broker-a", 0)
    assert set(received.system_properties) == {"UNIQ_KEY", "TAGS", "KEYS"}


def test_single_key_may_be_a_string() -> None:
    assert Message("t", b"x", keys="k").keys == ("k",)


def test_unique_keys_differ_and_have_32_hex_digits() -> None:
    keys = [Message("t", b"x").unique_key for _ in range(1_000)]
    assert len(set(keys)) == 1_000
    assert all(len(key) == 32 and int(key, 16) and key == key.upper() for key in keys)


def test_unique_key_counts_towards_the_limit_of_properties() -> None:
    """A long one made the broker refuse the whole batch that it was gathered with."""
    longest = message_limits.MAX_PROPERTIES_BYTES - len("UNIQ_KEY\x01\x02")
    message = Message("t", b"x", unique_key="k" * longest)
    assert decode(message.encode(1, HOST)).unique_key == message.unique_key
    with pytest.raises(InvalidInput, match="properties"):
        Message("t", b"x", unique_key="k" * (longest + 1))
    with pytest.raises(InvalidInput, match="properties"):
        half_of(message, "g")


def test_message_sent_twice_keeps_its_unique_key() -> None:
    message = Message("t", b"x")
    assert decode(message.encode(1, HOST)).unique_key == decode(message.encode(2, HOST)).unique_key


def test_retried_copy_shows_the_original_topic_and_id() -> None:
    record = decode(Message("t", b"x").encode(5_000, HOST))
    record.topic = "%RETRY%g"
    record.properties |= {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "AB" * 16}
    record.reconsume_times = 2
    received = ReceivedMessage.from_record(record, "broker-b")
    assert (received.topic, received.message_id, received.reconsume_times) == ("orders", "AB" * 16, 2)
    assert received.queue == MessageQueue("%RETRY%g", "broker-b", 0)


@pytest.mark.parametrize("level", [-2, -9])
def test_retry_accepts_no_level_below_minus_one(level: int) -> None:
    assert Retry(3).delay_level == 3
    with pytest.raises(InvalidInput):
        Retry(level)


def test_garbage_collector_tracks_only_message_subclasses() -> None:
    class Own(Message):
        pass

    messages = [Message("t", b"x"), Message("t", b"x", tags="a", keys=["b"], properties={"c": "d"}, delay_level=1)]
    assert [gc.is_tracked(message) for message in messages] == [MessageFields is PlainMessageFields] * 2
    assert gc.is_tracked(Own("t", b"x"))
    gc.collect()
    assert copy.copy(messages[1]).tags == "a"
    del messages
    gc.collect()


def test_message_can_be_replaced_pickled_and_copied() -> None:
    message = Message("t", b"x", "tag", ["k"], {"a": "b"}, delay_level=2)
    for other in pickle.loads(pickle.dumps(message)), pickle.loads(pickle.dumps(message, 0)), copy.copy(message):
        for field in dataclasses.fields(Message):
            assert getattr(other, field.name) == getattr(message, field.name)
        assert (other.unique_key, other.is_delayed) == (message.unique_key, True)
        assert other.encode(1, HOST) == message.encode(1, HOST)
    later = dataclasses.replace(message, delay_level=3)
    assert (later.delay_level, later.keys, later.unique_key == message.unique_key) == (3, ("k",), False)
    assert weakref.ref(message)() is message
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.body = b"y"  # type: ignore[misc]


def test_subclass_of_message_keeps_its_own_attributes() -> None:
    class Own(Message):
        def __init__(self, number: int) -> None:
            super().__init__("t", b"%d" % number)
            object.__setattr__(self, "number", number)

    own = copy.copy(Own(3))
    assert (type(own), own.number, own.body) == (Own, 3, b"3")  # type: ignore[attr-defined]


def test_topic_is_checked_also_after_a_valid_message() -> None:
    class Text(str):
        __slots__ = ()

    Message("known-topic", b"x")
    assert Message(Text("known-topic"), b"x").topic == "known-topic"
    with pytest.raises(InvalidInput):
        Message("known-topic", b"")
    with pytest.raises(InvalidInput):
        Message("SCHEDULE_TOPIC_XXXX", b"x")
    with pytest.raises(TypeError):
        Message(["known-topic"], b"x")  # type: ignore[arg-type]
