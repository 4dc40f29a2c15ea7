"""Bodies that are JSON objects: RocketMQ's shapes, written as strict JSON, which its clients read as well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import MAX_FRAME_BYTES, Buffer, Command, half_of_a_pair, may_say_halves
from raymq.storage.steps import Steps

#: What a request's body may be. A value costs up to a hundred bytes and half a microsecond of the loop, however few
#: bytes say it: a list of 10,000 topics or groups fits.
MAX_BODY_BYTES = 4 << 20
MAX_VALUES = 150_000
#: Of them so many may have a fraction or an exponent: each takes a microsecond or more. No request has any.
MAX_FLOATS = 10_000
_SHORT_BYTES = 50_000
#: So much is looked at together.
_PART_BYTES = 64 << 10
#: Half of a surrogate pair is not taken in; one that is there all the same, from an older file, is answered as "?".
_UNSAYABLE = "replace"


def read_object(
    body: Buffer, *, max_bytes: int = MAX_BODY_BYTES, max_values: int = MAX_VALUES, max_floats: int = MAX_FLOATS
) -> dict[str, Any]:
    """The object in a body.

    Args:
        max_bytes: a longer body is refused before it is looked at.
        max_values: so is one of more values (elements of lists and objects, and what looks like them in texts).
        max_floats: so many of them may have a fraction or an exponent, where the body is not short.

    Raises:
        InvalidInput: it is none, or breaks one of these limits, or values are nested too deep, or a text in it has half
            of a surrogate pair: whoever was told it again would get an error instead of his answer.
    """
    check(body, max_bytes, max_values)
    return parsed(body, max_floats)


def check(body: Buffer, max_bytes: int, max_values: int) -> None:
    """InvalidInput, as `read_object`, where a body breaks one of these limits. No copy of it is made."""
    if len(body) > max_bytes:
        raise InvalidInput("body", f"at most {max_bytes} bytes of JSON", len(body))
    parts = (bytes(body[at : at + _PART_BYTES]) for at in range(0, len(body), _PART_BYTES))
    values = sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in parts)
    if values > max_values:
        raise InvalidInput("body", f"JSON of at most {max_values} values", values)


def parsed(text: Buffer, max_floats: int = MAX_FLOATS) -> dict[str, Any]:
    """The object in a text; InvalidInput as `read_object`."""
    try:
        is_short = len(text) <= _SHORT_BYTES
        value = json.loads(str(text, "utf-8"), parse_float=None if is_short else _counted(max_floats))
        if may_say_halves(text):
            check_halves(value)
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput("body", "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object", type(value).__name__)
    return value


def _counted(most: int) -> Callable[[str], float]:
    """Reads so many numbers, and no more."""
    left = most

    def read(told: str) -> float:
        nonlocal left
        left -= 1
        if left < 0:
            raise InvalidInput("body", f"JSON of at most {most} numbers with a fraction or an exponent", "more")
        return float(told)

    return read


def check_halves(value: Any) -> None:
    """InvalidInput if what was read from JSON has half of a surrogate pair."""
    half = half_of_a_pair(value)
    if half:
        raise InvalidInput("body", "JSON of whole characters, no half of a surrogate pair", half)


def text_in(told: Mapping[str, Any], name: str) -> str:
    """The text under that name; InvalidInput: it is none, or absent."""
    value = told.get(name)
    if not isinstance(value, str):
        raise InvalidInput(name, "a text", value)
    return value


def read_answer(body: Buffer) -> dict[str, Any]:
    """The object in the body of an answer, which may be as long as a frame; raises as `read_object`."""
    return read_object(body, max_bytes=MAX_FRAME_BYTES, max_values=MAX_FRAME_BYTES, max_floats=MAX_FRAME_BYTES)


def answer(request: Command, value: Mapping[str, Any], fields: dict[str, Any] | None = None) -> Command:
    """SUCCESS with `value` as body."""
    return request.response(ResponseCode.SUCCESS, fields, bytes_of(value))


def written(items: Iterable[tuple[str, Any]], at_once: int) -> Steps[list[bytes]]:
    """A JSON object of many members, in steps of `at_once` of them and in as many pieces.

    A long text that is put together from pieces, and again, takes longer than the pieces.
    """
    pieces, texts = [b"{"], list[str]()
    for number, (name, value) in enumerate(items):
        if number and number % at_once == 0:
            pieces.append("".join(texts).encode(errors=_UNSAYABLE))
            texts.clear()
            yield None
        texts.append(f"{',' if number else ''}{text_of(name)}:{text_of(value)}")
    return [*pieces, ("".join(texts) + "}").encode(errors=_UNSAYABLE)]


def listed(values: Sequence[Any], at_once: int) -> Steps[list[bytes]]:
    """A JSON list of many values, as `written`."""
    pieces = [b"["]
    for at in range(0, len(values), at_once):
        if at:
            yield None
            pieces.append(b",")
        pieces.append(bytes_of(values[at : at + at_once])[1:-1])
    return [*pieces, b"]"]


def text_of(value: Any) -> str:
    """Strict JSON, as short as it can be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def bytes_of(value: Any) -> bytes:
    """`text_of` as it is sent."""
    return text_of(value).encode(errors=_UNSAYABLE)


def answer_of(request: Command, members: Mapping[str, Sequence[bytes]]) -> Command:
    """SUCCESS with an object of these members as body, the value of each JSON already, in pieces."""
    pieces: list[bytes] = []
    for name, value in members.items():
        pieces += (f"{',' if pieces else '{'}{text_of(name)}:".encode(errors=_UNSAYABLE), *value)
    return request.response(ResponseCode.SUCCESS, pieces=[*pieces, b"}"])


def queue_object(queue: MessageQueue) -> dict[str, Any]:
    """A queue as RocketMQ's object."""
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}


def queue_key(queue: MessageQueue) -> str:
    """A queue as the key of a map: its object, quoted."""
    return json.dumps(queue_object(queue), separators=(",", ":"))
