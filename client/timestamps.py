"""Convert times that a user gives into those of brokers, and parse and format them.

The command line uses the texts.
"""

from __future__ import annotations

import math
import re
import time
from datetime import datetime
from typing import Final

from raymq.actors.errors import InvalidInput
from raymq.client import arguments
from raymq.storage.records import message_limits

#: Later than any message; fits the 64-bit integer of a command.
FAR_FUTURE_MS: Final = 1 << 62
#: The texts that `parse_time` accepts.
AS_TEXT: Final = "seconds since 1970, ISO 8601 (local without a zone), or an age such as 2h"
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?) *(ms|s|min|m|h|d|w) *")
_SPANS: Final = re.compile(rf"(?:{_SPAN.pattern})+")


def milliseconds(field: str, when: float | datetime) -> int:
    """Return a time as whole milliseconds since 1970.

    Raises:
        InvalidInput: the value is no time, see `arguments.timestamp`.
    """
    return int(arguments.timestamp(field, when) * 1000)


def checked_due_time(field: str, when: float | datetime) -> float:
    """Return the time, in seconds since 1970, at which a message is to be delivered.

    Raises:
        InvalidInput: the value is no time, or further ahead than the longest delay of brokers.
    """
    seconds = arguments.timestamp(field, when)
    if seconds > time.time() + message_limits.MAX_DAYS_AHEAD * 86_400:
        raise InvalidInput(field, message_limits.DUE, when)
    return seconds


def milliseconds_or_end(field: str, when: float | datetime) -> int:
    """Return a time as `milliseconds` does; `math.inf` is later than every message."""
    return FAR_FUTURE_MS if when == math.inf else milliseconds(field, when)


def parse_duration(field: str, text: str, *, most: float = arguments.MAX_SECONDS) -> float:
    """Return the seconds of a text such as "90s", "1h30m" or "2.5".

    Raises:
        InvalidInput: the text is no duration, or the duration is longer than `most` seconds.
    """
    text = text.strip()
    if _SPANS.fullmatch(text):
        seconds = sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _SPAN.findall(text))
    else:
        try:
            seconds = float(text)
        except ValueError:
            raise InvalidInput(field, "a time span such as 90s, 15m, 2h or 1d", text) from None
    return arguments.duration(field, seconds, most=most)


def parse_time(field: str, text: str, *, end: bool = False) -> float:
    """Return the seconds since 1970 of a time that the command line gives as text.

    Args:
        end: accept "inf" too, which is later than every message.

    Raises:
        InvalidInput: the text is no time, see AS_TEXT, or more than 100 years ahead.
    """
    text = text.strip()
    if _SPANS.fullmatch(text):
        return max(0.0, time.time() - parse_duration(field, text))
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return seconds if end and seconds == math.inf else arguments.timestamp(field, seconds)
    try:
        return arguments.timestamp(field, datetime.fromisoformat(text).astimezone())
    except InvalidInput:
        raise
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(field, AS_TEXT, text) from None


def shown(seconds: float) -> str:
    """Return a time as ISO 8601 in the process's time zone, to the millisecond."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def format_duration(seconds: float) -> str:
    """Return a time span in words, such as "12 s" or "2 h 10 min".

    Other examples: "3 min", "4 d 3 h".
    """
    if seconds < 59.5:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    hours = round(seconds / 3_600)
    return f"{hours // 24} d" + (f" {hours % 24} h" if hours % 24 else "")
