"""Test the trace context in the properties of messages."""

from __future__ import annotations

import pytest

from raymq.client.message import Message
from raymq.client.tracing.trace_properties import carried_context, with_context
from raymq.storage.records import message_limits
from raymq.storage.records.record import decode_properties

PARENT = f"00-{1:032x}-{2:016x}-01"
OTHER = f"00-{3:032x}-{4:016x}-00"


@pytest.mark.parametrize(
    ("user", "system", "expected"),
    [
        ({}, {}, {}),
        ({"traceparent": PARENT}, {}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "a=b"}, {}, {"traceparent": PARENT, "tracestate": "a=b"}),
        ({"tracestate": "a=b"}, {}, {}),
        ({"traceparent": "no such form"}, {}, {}),
        ({"traceparent": PARENT.upper().replace("1", "A")}, {}, {}),
        ({}, {"TRACE_CONTEXT": PARENT}, {"traceparent": PARENT}),
        ({}, {"TRACE_CONTEXT": "of another form"}, {}),
        ({"traceparent": PARENT}, {"TRACE_CONTEXT": OTHER}, {"traceparent": PARENT}),
        ({"traceparent": PARENT + "-later-version"}, {}, {"traceparent": PARENT + "-later-version"}),
    ],
)
def test_context_is_read_from_both_forms(
    user: dict[str, str], system: dict[str, str], expected: dict[str, str]
) -> None:
    assert carried_context(user, system) == expected


def test_copy_carries_the_context_and_the_same_key() -> None:
    message = Message("t", b"body", tags="paid", keys=["k"], properties={"a": "b"})
    traced = with_context(message, {"traceparent": PARENT, "tracestate": "a=b"})
    assert type(traced) is Message
    assert (traced.topic, traced.body, traced.tags, traced.keys) == ("t", b"body", "paid", ("k",))
    assert traced.unique_key == message.unique_key
    assert dict(message.properties) == {"a": "b"}
    expected = {"a": "b", "KEYS": "k", "TAGS": "paid", "traceparent": PARENT, "tracestate": "a=b"}
    assert decode_properties(traced.own_properties) == expected
    assert dict(traced.properties) == {"a": "b", "traceparent": PARENT, "tracestate": "a=b"}


def test_context_replaces_an_earlier_one() -> None:
    message = Message("t", b"body", properties={"traceparent": PARENT, "tracestate": "a=b", "c": "d"})
    traced = with_context(message, {"traceparent": OTHER})
    assert decode_properties(traced.own_properties) == {"c": "d", "traceparent": OTHER}
    assert traced.own_properties.count(b"traceparent") == 1


def test_context_is_left_out_without_room() -> None:
    room = message_limits.MAX_PROPERTIES_BYTES - message_limits.COPIES_ROOM_BYTES
    for length, has_room in ((room - 300, True), (room, False)):
        message = Message("t", b"body", properties={"a": "b" * length})
        assert (with_context(message, {"traceparent": PARENT}) is not message) == has_room


def test_message_stays_without_context() -> None:
    message = Message("t", b"body")
    assert with_context(message, {}) is message
