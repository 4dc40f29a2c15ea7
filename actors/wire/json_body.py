"""Bodies that are JSON objects, in RocketMQ's shapes.

They are written as strict JSON, which RocketMQ's clients read as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import MAX_FRAME_BYTES, Buffer, Command, find_lone_surrogate, may_have_surrogates
from raymq.storage.cooperative_steps import Steps

#: Limits of a request's body. A value costs up to a hundred bytes of memory and half a microsecond of the loop, even if
#: it is only a few bytes long. A list of 10,000 topics or groups fits.
MAX_BODY_BYTES = 4 << 20
MAX_VALUES = 150_000
#: So many of the values may have a fraction or an exponent: each takes a microsecond or more, and no valid request has
#: any.
MAX_FLOATS = 10_000
_SHORT_BYTES = 50_000
#: The bytes of one part that `check` counts at a time.
_PART_BYTES = 64 << 10
#: Half of a surrogate pair is refused on input; one that an older file contains is sent as "?".
_UNSAYABLE = "replace"


def read_object(
    body: Buffer, *, max_bytes: int = MAX_BODY_BYTES, max_values: int = MAX_VALUES, max_floats: int = MAX_FLOATS
) -> dict[str, Any]:
    """Return the JSON object in a body.

    Args:
        max_bytes: a longer body is refused before it is parsed.
        max_values: a body with more values is refused, too (elements of lists and objects, and characters in strings
            that look like them).
        max_floats: so many values may have a fraction or an exponent, if the body is not short.

    Raises:
        InvalidInput: the body is no JSON object, exceeds one of these limits, has values that are nested too deep, or
            has a string with half of a surrogate pair, which could not be sent to clients later.
    """
    check(body, max_bytes, max_values)
    return parse_object(body, max_floats)


def check(body: Buffer, max_bytes: int, max_values: int) -> None:
    """Raise InvalidInput if a body exceeds one of these limits, as in `read_object`.

    The body is not copied as a whole.
    """
    if len(body) > max_bytes:
        raise InvalidInput("body", f"at most {max_bytes} bytes of JSON", len(body))
    parts = (bytes(body[at : at + _PART_BYTES]) for at in range(0, len(body), _PART_BYTES))
    values = sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in parts)
    if values > max_values:
        raise InvalidInput("body", f"JSON of at most {max_values} values", values)


def parse_object(text: Buffer, max_floats: int = MAX_FLOATS) -> dict[str, Any]:
    """Return the JSON object in a text; raise InvalidInput as `read_object`."""
    try:
        is_short = len(text) <= _SHORT_BYTES
        value = json.loads(str(text, "utf-8"), parse_float=None if is_short else _counted(max_floats))
        if may_have_surrogates(text):
            reject_lone_surrogates(value)
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput("body", "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object", type(value).__name__)
    return value


def _counted(most: int) -> Callable[[str], float]:
    """Return a converter of floats that raises InvalidInput after `most` numbers."""
    remaining = most

    def read(number_text: str) -> float:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise InvalidInput("body", f"JSON of at most {most} numbers with a fraction or an exponent", "more")
        return float(number_text)

    return read


def reject_lone_surrogates(value: Any) -> None:
    """Raise InvalidInput if a value read from JSON has half of a surrogate pair."""
    half = find_lone_surrogate(value)
    if half:
        raise InvalidInput("body", "JSON without half surrogate pairs", half)


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
    return read_object(body, max_bytes=MAX_FRAME_BYTES, max_values=MAX_FRAME_BYTES, max_floats=MAX_FRAME_BYTES)


def answer(request: Command, value: Mapping[str, Any], fields: dict[str, Any] | None = None) -> Command:
    """Return a SUCCESS answer with `value` as its JSON body."""
    return request.response(ResponseCode.SUCCESS, fields, json_bytes(value))


def object_steps(items: Iterable[tuple[str, Any]], at_once: int) -> Steps[list[bytes]]:
    """Encode a JSON object of many members, in steps of `at_once` members, as pieces.

    The pieces are not joined, because joining a long text, and again later, takes longer than encoding the pieces.
    """
    pieces, texts = [b"{"], list[str]()
    for number, (name, value) in enumerate(items):
        if number and number % at_once == 0:
            pieces.append("".join(texts).encode(errors=_UNSAYABLE))
            texts.clear()
            yield None
        texts.append(f"{',' if number else ''}{json_text(name)}:{json_text(value)}")
    return [*pieces, ("".join(texts) + "}").encode(errors=_UNSAYABLE)]


def listed(values: Sequence[Any], at_once: int) -> Steps[list[bytes]]:
    """Encode a JSON list of many values, in steps as `object_steps`."""
    pieces = [b"["]
    for at in range(0, len(values), at_once):
        if at:
            yield None
            pieces.append(b",")
        pieces.append(json_bytes(values[at : at + at_once])[1:-1])
    return [*pieces, b"]"]


def json_text(value: Any) -> str:
    """Return a value as strict JSON without whitespace."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    """Return `json_text` as the bytes that are sent."""
    return json_text(value).encode(errors=_UNSAYABLE)


def object_response(request: Command, members: Mapping[str, Sequence[bytes]]) -> Command:
    """Return a SUCCESS answer whose body is an object of these members.

    Each value is already encoded as JSON, in pieces.
    """
    pieces: list[bytes] = []
    for name, value in members.items():
        pieces += (f"{',' if pieces else '{'}{json_text(name)}:".encode(errors=_UNSAYABLE), *value)
    return request.response(ResponseCode.SUCCESS, pieces=[*pieces, b"}"])


def queue_object(queue: MessageQueue) -> dict[str, Any]:
    """Return a queue as RocketMQ's JSON object."""
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}


def queue_key(queue: MessageQueue) -> str:
    """Return a queue as the key of a map: its JSON object as a string."""
    return json.dumps(queue_object(queue), separators=(",", ":"))
