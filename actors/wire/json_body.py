"""Bodies that are JSON objects, in RocketMQ's shapes.

They are written as strict JSON, which RocketMQ's clients read as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import MAX_FRAME_BYTES, Buffer, Command
from raymq.storage import typed_json

T = TypeVar("T")

#: Limits of a request's body: decoding as much takes 11 ms of the loop. A list of 10,000 topics or groups fits.
MAX_BODY_BYTES = 4 << 20
MAX_VALUES = 150_000
#: A number with a fraction or an exponent may take 30 times as long as another value.
MAX_FLOATS = 10_000
#: The bytes of one part that `_values` counts at a time.
_PART_BYTES = 64 << 10


def read_object(
    body: Buffer, *, max_bytes: int = MAX_BODY_BYTES, max_values: int | None = MAX_VALUES
) -> dict[str, Any]:
    """Return the JSON object in a body.

    Raises:
        InvalidInput: the body is no JSON object, or `decode` refuses it.
    """
    value = decode(body, Any, max_bytes=max_bytes, max_values=max_values)
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object", type(value).__name__)
    return value


def decode(body: Buffer, kind: type[T], *, max_bytes: int = MAX_BODY_BYTES, max_values: int | None = MAX_VALUES) -> T:
    """Return the value in a body, decoded as msgspec does for the type `kind`.

    Args:
        max_bytes: a longer body is refused before it is parsed.
        max_values: a body with more values is refused, too (elements of lists and objects, and characters in strings
            that look like them), and one with more than `MAX_FLOATS` numbers with a fraction or an exponent.

    Raises:
        InvalidInput: the body exceeds one of these limits, or is no JSON of that type: also if it has a number without
            a value, or half of a surrogate pair, which could not be sent to clients later.
    """
    if len(body) > max_bytes:
        raise InvalidInput("body", f"at most {max_bytes} bytes of JSON", len(body))
    values = 0 if max_values is None else _values(body)
    if max_values is not None and values > max_values:
        raise InvalidInput("body", f"JSON of at most {max_values} values", values)
    return typed_json.decode(body, kind, "body", "JSON", _FloatLimit() if values > MAX_FLOATS else None)


class _FloatLimit:
    """Parses floats of one body, up to the limit."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, number: str) -> float:
        self._count += 1
        if self._count > MAX_FLOATS:
            raise InvalidInput("body", f"JSON of at most {MAX_FLOATS} numbers with a fraction or an exponent", "more")
        return float(number)


def _values(body: Buffer) -> int:
    """Return how many values a body has at most.

    The body is not copied as a whole.
    """
    parts = (bytes(body[at : at + _PART_BYTES]) for at in range(0, len(body), _PART_BYTES))
    return sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in parts)


def require_text(data: Mapping[str, Any], name: str) -> str:
    """Return the string under a name; raise InvalidInput if there is none."""
    value = data.get(name)
    if not isinstance(value, str):
        raise InvalidInput(name, "a text", value)
    return value


def read_answer(body: Buffer) -> dict[str, Any]:
    """Return the object in an answer's body, which may be as long as a frame.

    Raises:
        InvalidInput: as `read_object`.
    """
    return read_object(body, max_bytes=MAX_FRAME_BYTES, max_values=None)


def answer(request: Command, value: Mapping[str, Any], fields: dict[str, Any] | None = None) -> Command:
    """Return a SUCCESS answer with `value` as its JSON body."""
    return request.response(ResponseCode.SUCCESS, fields, encode(value))


def encode(value: Any) -> bytes:
    """Return a value as strict JSON without whitespace, as it is sent."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair is refused on input; one in an older file is sent as "?"
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def queue_object(queue: MessageQueue) -> dict[str, Any]:
    """Return a queue as RocketMQ's JSON object."""
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}


def queue_key(queue: MessageQueue) -> str:
    """Return a queue as the key of a map: its JSON object as a string."""
    return json.dumps(queue_object(queue), separators=(",", ":"))
