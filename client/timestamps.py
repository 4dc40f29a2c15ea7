"""Times that a user gives, as brokers have them."""

from __future__ import annotations

import math
from typing import Final

from raymq.client import arguments

#: Later than any message; fits the i8 of a command.
FAR_FUTURE_MS: Final = 1 << 62


def milliseconds(field: str, seconds: float) -> int:
    """Seconds since the epoch (infinity: behind everything) in whole milliseconds; InvalidInput."""
    if seconds == math.inf:
        return FAR_FUTURE_MS
    return int(min(arguments.timestamp(field, seconds) * 1000, FAR_FUTURE_MS))
