"""The table of delay levels in RocketMQ's notation.

An example is "1s 5s 10s 30s 1m ..."; the first entry is level 1.
"""

from __future__ import annotations

import re
from typing import Final

from raymq.storage.errors import InvalidInput

#: The topic that holds messages until their delay has passed: level n in queue n - 1.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
#: The topic whose queue 0 holds messages with a delivery time of their own; RocketMQ's TIMER_TOPIC.
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")


def parse(text: str) -> tuple[int, ...]:
    """Return the delay of each level in ms; level k at index k - 1.

    Raises:
        InvalidInput: the text has no level, or one that is not a number and one of s, m, h, d.
    """
    if not isinstance(text, str):
        raise InvalidInput("delay_levels", 'a text such as "1s 5s 1m"', text)
    delays_ms: list[int] = []
    for word in text.split():
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise InvalidInput("delay_levels", 'numbers with a unit s, m, h or d, such as "1s 5s 1m"', text)
        delays_ms.append(int(match[1]) * _UNIT_MS[match[2]])
    if not delays_ms:
        raise InvalidInput("delay_levels", "at least one level", text)
    return tuple(delays_ms)
