"""Check the arguments of public calls.

There is one function for each kind of argument. It returns the value as it is used, or raises InvalidInput. Every
public constructor and call uses these checks before anything is sent, so that a wrong argument always raises the same
error, which names the limit, and never reaches the event loop, the wire or a broker.
tests/unit/client/test_arguments.py calls the public signatures with invalid values.
"""

from __future__ import annotations

import ipaddress
import operator
import re
import time
from collections.abc import Sequence
from datetime import datetime
from sys import float_info
from typing import Any, Final, TypeVar

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.storage.errors import WrongType, number_text

_T = TypeVar("_T")

#: The longest time-out, interval or linger: a year, in seconds.
MAX_SECONDS: Final = 365 * 86_400.0
#: The most messages a second that a rate may name.
MAX_PER_SECOND: Final = 1e9
#: Counts are encoded as RocketMQ's 32-bit integers,
MAX_COUNT: Final = (1 << 31) - 1
#: and offsets as its 64-bit ones.
MAX_OFFSET: Final = (1 << 63) - 1
#: A time further ahead, in seconds, is taken for milliseconds and refused: 100 years.
MAX_SECONDS_AHEAD: Final = 100 * 365.25 * 86_400
#: What a time may be, and the limit of a time that is too far ahead, as every error states them.
TIME: Final = "seconds since 1970, at least 0, or a datetime with a time zone"
LOOKS_LIKE_MILLISECONDS: Final = "seconds since 1970; this looks like milliseconds"
#: The labels of host names (RFC 1123, and "_" as in the names of containers).
_HOST_LABEL: Final = re.compile("[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MAX_HOST_CHARACTERS: Final = 253
_ADDRESSES: Final = '"host:port", several as a list or separated by ";" or ","; IPv6 as "[::1]:9876", no "http://"'


def number(field: str, value: Any, allowed: str, *, least: float, most: float, above: bool = False) -> float:
    """Return a finite number from `least` to `most`.

    With `above`, `least` itself is excluded. Raise InvalidInput for any other value, and for a bool.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise InvalidInput(field, allowed, value)
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(field, allowed, value) from None
    if not least <= result <= most or (above and result == least):
        raise InvalidInput(field, allowed, value)
    return result


def duration(field: str, value: Any, *, above: bool = False, most: float = MAX_SECONDS) -> float:
    """Return a duration in seconds from 0 to `most`; with `above`, 0 is excluded."""
    allowed = f"{'more than 0' if above else '0'} to {_seconds(most)}"
    return number(field, value, allowed, least=0.0, most=most, above=above)


def _seconds(seconds: float) -> str:
    if seconds == MAX_SECONDS:
        return f"{seconds:,.0f} seconds (a year)"
    if seconds > 86_400 and not seconds % 86_400:
        return f"{seconds:,.0f} seconds ({seconds / 86_400:.0f} days)"
    return f"{number_text(seconds)} seconds"


def timestamp(field: str, value: Any) -> float:
    """Return the seconds since 1970 of a number or a datetime with a time zone.

    Raises:
        InvalidInput: the value is no time, has no time zone, is before 1970, or is more than 100 years ahead.
    """
    if isinstance(value, datetime):
        try:
            is_naive, seconds = value.utcoffset() is None, value.timestamp()
        except (ValueError, OverflowError):  # pandas' NaT is a datetime and cannot be converted
            raise InvalidInput(field, TIME, value) from None
        if is_naive:
            remedy = "use value.astimezone() if it is local time, or datetime.now(timezone.utc)"
            raise InvalidInput(field, TIME, f"{value.isoformat()} without a time zone", remedy=remedy)
        if seconds < 0:
            raise InvalidInput(field, TIME, value.isoformat())
    else:
        seconds = number(field, value, TIME, least=0.0, most=float_info.max)
    if seconds > time.time() + MAX_SECONDS_AHEAD:
        raise InvalidInput(field, LOOKS_LIKE_MILLISECONDS, value, remedy="divide it by 1,000")
    return seconds


def per_second(field: str, value: Any) -> float:
    """Return a rate in messages per second."""
    allowed = f"more than 0, at most {MAX_PER_SECOND:,.0f} messages per second"
    return number(field, value, allowed, least=0.0, most=MAX_PER_SECOND, above=True)


def whole(field: str, value: Any, least: int, most: int = MAX_COUNT) -> int:
    """Return a whole number from `least` to `most`.

    Raise InvalidInput for any other value, for a bool, and for every float (also for 1.0).
    """
    allowed = f"a whole number, at least {least}" + (f", at most {most}" if most < MAX_OFFSET else "")
    if isinstance(value, bool):
        raise InvalidInput(field, allowed, value)
    try:
        result = operator.index(value)
    except TypeError:
        raise InvalidInput(field, allowed, value) from None
    if not least <= result <= most:
        raise InvalidInput(field, allowed, value)
    return result


def offset(field: str, value: Any) -> int:
    """Return a queue offset: a whole number from 0 to 2**63 - 1."""
    return whole(field, value, 0, MAX_OFFSET)


def flag(field: str, value: Any) -> bool:
    """Return a bool; raise InvalidInput for any other value, also for a truthy one."""
    if not isinstance(value, bool):
        raise InvalidInput(field, "True or False", value)
    return value


def text(field: str, value: Any) -> str:
    """Return a string that is not empty and that UTF-8 can encode."""
    if not isinstance(value, str):
        raise WrongType(field, "a string", value)
    if not value:
        raise InvalidInput(field, "a string that is not empty", value)
    return encodable(field, value)


def encodable(field: str, value: str) -> str:
    """Return a string that UTF-8 can encode; raise InvalidInput for a lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, "text that UTF-8 can express", ascii(value)[:80]) from error
    return value


def instance(field: str, value: Any, kind: type[_T]) -> _T:
    """Return an object of the class `kind`; raise WrongType for any other."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise WrongType(field, f"{article} {kind.__name__}", value)
    return value


def function(field: str, value: Any, allowed: str = "a function, or another object that can be called") -> None:
    """Raise WrongType unless the value is callable."""
    if not callable(value):
        raise WrongType(field, allowed, value)


def queue(field: str, value: Any) -> MessageQueue:
    """Return a MessageQueue whose fields have the right types.

    Whether the queue exists is checked by its broker, not here.
    """
    result = instance(field, value, MessageQueue)
    if not isinstance(result.topic, str) or not isinstance(result.broker, str):
        raise InvalidInput(field, "a MessageQueue(topic, broker, queue_id) of two strings and a number", value)
    if isinstance(result.queue_id, bool) or not isinstance(result.queue_id, int):
        raise InvalidInput(f"{field}.queue_id", "a whole number", result.queue_id)
    return result


def addresses(field: str, value: str | Sequence[str]) -> list[str]:
    """Return the "host:port" addresses in a text or in several texts.

    A text may have several addresses, separated by ";" or ",".
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        raise InvalidInput(field, _ADDRESSES, value)
    found = [each.strip() for several in texts for each in re.split("[;,]", several) if each.strip()]
    if not found:
        raise InvalidInput(field, _ADDRESSES, value)
    for each in found:
        host, _, port = each.rpartition(":")
        if not _may_be_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
            raise InvalidInput(field, _ADDRESSES, each)
    return found


def _may_be_host(host: str) -> bool:
    """Return True for an IPv4 address, a bracketed IPv6 address, and a valid host name."""
    if host.startswith("[") and host.endswith("]"):
        return _is_ip_address(host[1:-1], 6)
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdecimal():  # resolvers take such a name for an IPv4 address
        return _is_ip_address(host, 4)
    return len(host) <= _MAX_HOST_CHARACTERS and all(map(_HOST_LABEL.fullmatch, labels))


def _is_ip_address(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False
