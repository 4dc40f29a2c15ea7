"""What a broker answered, read by its clients: nothing of it is believed before it is checked.

Whatever an answer is, what a `reader` makes of it is a value of the right types and of bounded size, or it raises
ProtocolError.
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

#: What a program of another kind may mean by a number: 64 bits.
MOST: Final = (1 << 63) - 1
_MOST_DIGITS: Final = 20
#: Of a name, an address or a client's id, in characters.
_MOST_TEXT: Final = 4_096
#: What reading something else than was expected raises.
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


def reader(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that reads answers: what it cannot read is a ProtocolError."""

    @functools.wraps(read)
    def checked(*arguments: _P.args, **options: _P.kwargs) -> _T:
        try:
            return read(*arguments, **options)
        except _WRONG as error:
            told = f"{type(error).__name__}: {str(error)[:_MOST_TEXT]}"
            raise ProtocolError(f"an answer is not what was asked for ({read.__name__}: {told})") from error

    return checked


@reader
def told_in(answer: Command) -> dict[str, Any]:
    """The JSON object in the body of an answer."""
    return json_body.read_answer(answer.body)


@reader
def number(value: Any, least: int = 0, most: int = MOST) -> int:
    """A whole number, which may be written as text."""
    if isinstance(value, str) and len(value) <= _MOST_DIGITS and value.isascii():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"no whole number from {least} to {most}: {value!r:.40}")
    return value


@reader
def number_in(answer: Command, name: str, least: int = 0) -> int:
    """The whole number that an answer's field is."""
    return number(answer.fields[name], least)


@reader
def text(value: Any) -> str:
    """A text of bounded length."""
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise ValueError(f"no text of at most {_MOST_TEXT} characters: {value!r:.40}")
    return value


@reader
def queue(topic: Any, broker: Any, queue_id: Any) -> MessageQueue:
    """A queue by its parts."""
    return MessageQueue(text(topic), text(broker), number(queue_id, most=(1 << 31) - 1))


@reader
def listed(value: Any, read: Callable[[Any], _T]) -> list[_T]:
    """A list, each element read."""
    if not isinstance(value, list):
        raise TypeError(f"no list: {type(value).__name__}")
    return [read(each) for each in value]


@reader
def table(value: Any, read: Callable[[Any], _T]) -> dict[MessageQueue, _T]:
    """RocketMQ's map whose keys are queues, written as quoted JSON; each value read."""
    items: Iterable[tuple[str, Any]] = value.items()
    return {queue_of(json_body.read_object(key.encode())): read(each) for key, each in items}


@reader
def queue_of(told: Any) -> MessageQueue:
    """RocketMQ's object of a queue."""
    return queue(told["topic"], told["brokerName"], told["queueId"])
