"""Checked reading of a broker's answers by its clients.

A function that is decorated with `protocol_checked` returns values of the right types and of bounded size for any
answer, or raises ProtocolError.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar

from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import json_body
from raymq.actors.wire.frame import Command

#: The largest number that an answer may have: 64 bits, signed.
MAX_INT64: Final = (1 << 63) - 1
_MAX_DIGITS: Final = 20
#: The longest name, address or client id, in characters.
_MAX_TEXT: Final = 4_096
#: The exceptions that a reader raises for an answer of another shape.
_WRONG: Final = (
    InvalidInput,
    AttributeError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")


def protocol_checked(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a reader of answers so that it raises ProtocolError if it cannot read one."""

    @functools.wraps(read)
    def checked(*arguments: _P.args, **options: _P.kwargs) -> _T:
        try:
            return read(*arguments, **options)
        except _WRONG as error:
            reason = f"{type(error).__name__}: {str(error)[:_MAX_TEXT]}"
            raise ProtocolError(f"an answer has an unexpected form ({read.__name__}: {reason})") from error

    return checked


@protocol_checked
def read_json_answer(answer: Command) -> dict[str, Any]:
    """Return the JSON object in the body of an answer."""
    return json_body.read_answer(answer.body)


@protocol_checked
def number(value: Any, least: int = 0, most: int = MAX_INT64) -> int:
    """Return `value` as an integer within a range; it may be a decimal string."""
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and value.isascii():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"not a whole number from {least} to {most}: {value!r:.40}")
    return value


@protocol_checked
def read_number_field(answer: Command, name: str, least: int = 0) -> int:
    """Return the integer in a field of an answer."""
    return number(answer.fields[name], least)


@protocol_checked
def text(value: Any) -> str:
    """Return `value` if it is a string of bounded length."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"not a text of at most {_MAX_TEXT} characters: {value!r:.40}")
    return value


@protocol_checked
def queue(topic: Any, broker: Any, queue_id: Any) -> MessageQueue:
    """Return the queue of a topic, a broker and a queue id."""
    return MessageQueue(text(topic), text(broker), number(queue_id, most=(1 << 31) - 1))


@protocol_checked
def read_list(value: Any, read: Callable[[Any], _T]) -> list[_T]:
    """Return a list with each element converted by `read`."""
    if not isinstance(value, list):
        raise TypeError(f"not a list: {type(value).__name__}")
    return [read(each) for each in value]


@protocol_checked
def table(value: Any, read: Callable[[Any], _T]) -> dict[MessageQueue, _T]:
    """Return RocketMQ's map with queues as keys, each value converted by `read`.

    A key is the queue's JSON object as a string.
    """
    items: Iterable[tuple[str, Any]] = value.items()
    return {parse_queue(json_body.read_object(key.encode())): read(each) for key, each in items}


@protocol_checked
def parse_queue(data: Any) -> MessageQueue:
    """Return the queue in RocketMQ's JSON object."""
    return queue(data["topic"], data["brokerName"], data["queueId"])
