"""What callers may give: one function a kind of argument, which returns the value as it is used or raises InvalidInput.

Every public constructor and call checks with these before anything is sent, so that a wrong argument is the same error
everywhere, names its limit, and never reaches the loop, the wire or a broker. tests/unit/client/test_arguments.py walks
the public signatures with hostile values.
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
MOST_SECONDS: Final = 365 * 86_400.0
#: The most messages a second that a rate may name.
MOST_PER_SECOND: Final = 1e9
#: Counts travel as RocketMQ's 32-bit integers,
MOST_COUNT: Final = (1 << 31) - 1
#: and offsets as its 64-bit ones.
MOST_OFFSET: Final = (1 << 63) - 1
#: A time further ahead, in seconds, is taken for a mistake in the unit: 100 years.
MOST_SECONDS_AHEAD: Final = 100 * 365.25 * 86_400
#: What a time may be, and the limit that one far ahead breaks, as every error says it.
TIME: Final = "seconds since 1970, at least 0, or a datetime with a time zone"
LOOKS_LIKE_MILLISECONDS: Final = "seconds since 1970; this looks like milliseconds"
#: What names of hosts may be (RFC 1123, and "_" as in the names of containers).
_HOST_LABEL: Final = re.compile("[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MOST_HOST_CHARACTERS: Final = 253
_ADDRESSES: Final = '"host:port", several as a list or separated by ";" or ","; IPv6 as "[::1]:9876", no "http://"'


def number(field: str, value: Any, allowed: str, *, least: float, most: float, above: bool = False) -> float:
    """A finite number from `least` to `most` (`above`: not `least` itself); a bool is none."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise InvalidInput(field, allowed, value)
    try:
        made = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(field, allowed, value) from None
    if not least <= made <= most or (above and made == least):
        raise InvalidInput(field, allowed, value)
    return made


def duration(field: str, value: Any, *, above: bool = False, most: float = MOST_SECONDS) -> float:
    """Seconds from 0 (`above`: more than 0) to `most`."""
    allowed = f"{'more than 0' if above else '0'} to {_seconds(most)}"
    return number(field, value, allowed, least=0.0, most=most, above=above)


def _seconds(seconds: float) -> str:
    if seconds == MOST_SECONDS:
        return f"{seconds:,.0f} seconds (a year)"
    if seconds > 86_400 and not seconds % 86_400:
        return f"{seconds:,.0f} seconds ({seconds / 86_400:.0f} days)"
    return f"{number_text(seconds)} seconds"


def timestamp(field: str, value: Any) -> float:
    """Return the seconds since 1970 that a number or an aware datetime names.

    Raises:
        InvalidInput: it is none, has no time zone, is before 1970, or is more than 100 years ahead.
    """
    if isinstance(value, datetime):
        try:
            is_naive, seconds = value.utcoffset() is None, value.timestamp()
        except (ValueError, OverflowError):  # pandas' NaT is a datetime
            raise InvalidInput(field, TIME, value) from None
        if is_naive:
            remedy = "use value.astimezone() if it is local time, or datetime.now(timezone.utc)"
            raise InvalidInput(field, TIME, f"{value.isoformat()} without a time zone", remedy=remedy)
        if seconds < 0:
            raise InvalidInput(field, TIME, value.isoformat())
    else:
        seconds = number(field, value, TIME, least=0.0, most=float_info.max)
    if seconds > time.time() + MOST_SECONDS_AHEAD:
        raise InvalidInput(field, LOOKS_LIKE_MILLISECONDS, value, remedy="divide it by 1,000")
    return seconds


def per_second(field: str, value: Any) -> float:
    """A rate in messages per second."""
    allowed = f"more than 0, at most {MOST_PER_SECOND:,.0f} messages per second"
    return number(field, value, allowed, least=0.0, most=MOST_PER_SECOND, above=True)


def whole(field: str, value: Any, least: int, most: int = MOST_COUNT) -> int:
    """A whole number from `least` to `most`; neither a bool nor a float with nothing behind its point."""
    allowed = f"a whole number, at least {least}" + (f", at most {most}" if most < MOST_OFFSET else "")
    if isinstance(value, bool):
        raise InvalidInput(field, allowed, value)
    try:
        made = operator.index(value)
    except TypeError:
        raise InvalidInput(field, allowed, value) from None
    if not least <= made <= most:
        raise InvalidInput(field, allowed, value)
    return made


def offset(field: str, value: Any) -> int:
    """A queue offset."""
    return whole(field, value, 0, MOST_OFFSET)


def flag(field: str, value: Any) -> bool:
    """True or False, and nothing that is merely true."""
    if not isinstance(value, bool):
        raise InvalidInput(field, "True or False", value)
    return value


def text(field: str, value: Any) -> str:
    """A string that is not empty and that UTF-8 can express."""
    if not isinstance(value, str):
        raise WrongType(field, "a string", value)
    if not value:
        raise InvalidInput(field, "a string that is not empty", value)
    return encodable(field, value)


def encodable(field: str, value: str) -> str:
    """A string without half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, "text that UTF-8 can express", ascii(value)[:80]) from error
    return value


def instance(field: str, value: Any, kind: type[_T]) -> _T:
    """An object of that class."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise WrongType(field, f"{article} {kind.__name__}", value)
    return value


def function(field: str, value: Any, wanted: str = "a function, or another object that can be called") -> None:
    """Check that it can be called."""
    if not callable(value):
        raise WrongType(field, wanted, value)


def queue(field: str, value: Any) -> MessageQueue:
    """A MessageQueue of proper types. Whether there is such a queue is its broker's to say."""
    made = instance(field, value, MessageQueue)
    if not isinstance(made.topic, str) or not isinstance(made.broker, str):
        raise InvalidInput(field, "a MessageQueue(topic, broker, queue_id) of two strings and a number", value)
    if isinstance(made.queue_id, bool) or not isinstance(made.queue_id, int):
        raise InvalidInput(f"{field}.queue_id", "a whole number", made.queue_id)
    return made


def addresses(field: str, given: str | Sequence[str]) -> list[str]:
    """Return the addresses in a text, or in several texts; "host:port" each, separated by ";" or ","."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        raise InvalidInput(field, _ADDRESSES, given)
    found = [each.strip() for several in texts for each in re.split("[;,]", several) if each.strip()]
    if not found:
        raise InvalidInput(field, _ADDRESSES, given)
    for each in found:
        host, _, port = each.rpartition(":")
        if not _may_be_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
            raise InvalidInput(field, _ADDRESSES, each)
    return found


def _may_be_host(host: str) -> bool:
    """Return True for an IPv4 address, an IPv6 one in brackets, and what can be a host's name."""
    if host.startswith("[") and host.endswith("]"):
        return _is_ip_address(host[1:-1], 6)
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdecimal():  # taken for an IPv4 address by resolvers
        return _is_ip_address(host, 4)
    return len(host) <= _MOST_HOST_CHARACTERS and all(map(_HOST_LABEL.fullmatch, labels))


def _is_ip_address(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False
