"""Read and write the trace context in the properties of a message.

It is the W3C Trace Context (https://www.w3.org/TR/trace-context/): the properties `traceparent` and `tracestate`, which
every copy of a message keeps. RocketMQ's gRPC clients write the property TRACE_CONTEXT instead, which is read, too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from raymq.client.message import Message, ReceivedMessage
from raymq.storage.records import message_limits
from raymq.storage.records import property_names as names
from raymq.storage.records.record import decode_properties, encode_properties

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
#: The most bytes of the properties of a message to which a context is added.
_MOST_BYTES: Final = message_limits.MAX_PROPERTIES_BYTES - message_limits.COPIES_ROOM_BYTES

_is_traceparent = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?").fullmatch


def carried_context(user: Mapping[str, str], system: Mapping[str, str]) -> dict[str, str]:
    """Return the W3C properties of a message's trace context, {} if it has none.

    Args:
        user, system: the user's and the system properties of the message.
    """
    parent = user.get(TRACEPARENT, "")
    if _is_traceparent(parent):
        state = user.get(TRACESTATE)
        return {TRACEPARENT: parent} if state is None else {TRACEPARENT: parent, TRACESTATE: state}
    of_grpc = system.get(names.TRACE_CONTEXT, "")
    return {TRACEPARENT: of_grpc} if _is_traceparent(of_grpc) else {}


class TracedEntry(NamedTuple):
    """What a span needs to know of a dead letter, without its body."""

    topic: str
    message_id: str
    carrier: dict[str, str]


def received_context(message: ReceivedMessage) -> dict[str, str]:
    """Return `carried_context` of a received message."""
    return carried_context(message.properties, message.system_properties)


def with_context(message: Message, carrier: Mapping[str, str]) -> Message:
    """Return a copy with the same unique key that carries a trace context.

    The context replaces the one that the message has. A message whose properties leave no room for it is returned as it
    is: a trace must not make a send fail.
    """
    own = message.own_properties
    if TRACEPARENT in message.properties or TRACESTATE in message.properties:
        kept = decode_properties(own)
        own = encode_properties({name: kept[name] for name in kept if name not in (TRACEPARENT, TRACESTATE)})
    own += encode_properties(carrier)
    if not carrier or len(own) + message.key_pair_bytes > _MOST_BYTES:
        return message
    traced = copy.copy(message)
    carried = MappingProxyType({**message.properties, **carrier})
    traced.__setstate__({"_key": message.unique_key, "own_properties": own, "properties": carried})
    return traced
