"""Test that a malformed answer of a broker raises only ProtocolError."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.commands import admin_commands, group_commands, lock_commands, offset_commands
from raymq.actors.wire.commands.dead_letter_commands import read_redriven
from raymq.actors.wire.frame import Command
from raymq.actors.wire.json_body import queue_key
from raymq.actors.wire.response_validation import number, read_number_field

QUEUE = MessageQueue("t", "broker-a", 0)
OBJECT = {"topic": "t", "brokerName": "broker-a", "queueId": 0}
KEY = queue_key(QUEUE)

NO_OBJECTS = {
    "nothing": b"",
    "a list": b"[]",
    "a number": b"1",
    "no text": b"\xff\xfe",
    "nested deep": b"[" * 200_000,
    "an object nested deep": b'{"a":' * 200_000,
    "a huge number": b'{"a":' + b"9" * 10_000 + b"}",
    "half": b'{"lockOKMQSet": [',
}
WRONG: dict[str, Any] = {
    "None": None,
    "a text": "x",
    "a number": 5,
    "a list of lists": [[]],
    "a list of numbers": [1],
    "a list of nothing": [None],
    "an object": {"x": {}},
    "without an end": float("inf"),
    "a queue of another kind": [{**OBJECT, "queueId": "1e999"}],
    "a queue without bound": [{**OBJECT, "queueId": 1 << 80}],
    "a queue below 0": [{**OBJECT, "queueId": -1}],
    "half a queue": [{"topic": "t"}],
    "a table of texts": {KEY: "x"},
    "a table without bound": {KEY: float("inf")},
    "a table of lists": {KEY: []},
    "a table with a deep key": {"[" * 100_000: 1},
}
READERS: dict[str, Callable[[Command], object]] = {
    "lockOKMQSet": lock_commands.read_locked,
    "raymqTerms": lock_commands.read_terms,
    "consumerIdList": group_commands.read_members,
    "raymqOwners": group_commands.read_owners,
    "subscriptionGroupTable": admin_commands.read_groups,
    "offsetTable": admin_commands.read_topic_stats,
}


def answer(body: bytes) -> Command:
    return Command(ResponseCode.SUCCESS, body=body)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("body", NO_OBJECTS)
def test_body_without_json_object_raises_protocol_error(name: str, body: str) -> None:
    with pytest.raises(ProtocolError):
        READERS[name](answer(NO_OBJECTS[body]))


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (read, wrong)
        for read in [
            *READERS.values(),
            admin_commands.read_progress,
            admin_commands.read_reset,
            admin_commands.read_topic_config,
        ]
        for wrong in WRONG
        if not (read is admin_commands.read_groups and isinstance(WRONG[wrong], dict))  # its keys are names
    ],
)
def test_value_of_wrong_type_raises_protocol_error(read: Callable[[Command], object], wrong: str) -> None:
    content = dict.fromkeys([*READERS, "topicName"], WRONG[wrong])
    if read is admin_commands.read_topic_config:
        content["readQueueNums"] = WRONG[wrong]
    with pytest.raises(ProtocolError):
        read(answer(json.dumps(content).encode()))


def test_valid_answers_are_read() -> None:
    content = {"lockOKMQSet": [OBJECT], "raymqTerms": [7], "raymqOwners": [["t", "broker-a", 0, "me"]]}
    assert lock_commands.read_terms(answer(json.dumps(content).encode())) == {QUEUE: 7}
    assert group_commands.read_owners(answer(json.dumps(content).encode())) == {QUEUE: "me"}
    progress = {"offsetTable": {KEY: {"raymqCommitted": None, "brokerOffset": 5, "raymqOwner": None}}}
    assert admin_commands.read_progress(answer(json.dumps(progress).encode())) == {
        QUEUE: admin_commands.ConsumeProgress(None, 5, None, None, None, None)
    }


@pytest.mark.parametrize("value", [None, True, 1.0, "1e3", "", "x", -1, 1 << 63, "9" * 30, [], float("inf"), "٣" * 3])
def test_invalid_64_bit_number_raises_protocol_error(value: Any) -> None:
    with pytest.raises(ProtocolError):
        number(value)
    with pytest.raises(ProtocolError):
        read_number_field(Command(0, {"offset": value}), "offset")
    with pytest.raises(ProtocolError):
        offset_commands.read_committed_offset(Command(0, {"offset": value}))


def test_missing_fields_and_bad_status_raise_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        read_number_field(Command(0), "offset")
    with pytest.raises(ProtocolError):
        read_redriven(Command(0, {"told": ["?"]}))
    for fields in ({}, {"corruption": 5}, {"corruption": [], "name": "x"}):
        with pytest.raises(ProtocolError):
            admin_commands.read_status(Command(0, fields))


def test_deeply_nested_error_becomes_protocol_error() -> None:
    refusal = Command(ResponseCode.SYSTEM_ERROR, {error_codec.FIELD: "[" * 100_000}, remark="no")
    assert type(error_codec.error_from_response(refusal)) is ProtocolError
