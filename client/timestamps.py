"""Times that a user gives, as brokers have them."""

from __future__ import annotations

import math
from typing import Final

from raymq.actors.errors import InvalidInput

#: Later than any message; fits the i8 of a command.
FAR_FUTURE_MS: Final = 1 << 62


def milliseconds(field: str, seconds: float) -> int:
    """Seconds since the epoch (infinity: behind everything) in whole milliseconds; InvalidInput."""
    if math.isnan(seconds) or seconds < 0:
        raise InvalidInput(field, "seconds since the epoch, at least 0", seconds)
    return int(min(seconds * 1000, FAR_FUTURE_MS))
