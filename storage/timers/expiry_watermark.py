"""Expiry watermarks, which say which timers have ended for good.

The timer log may drop their entries. The result must not depend on later clock changes. All timers that were due before
some time have ended once. A later message may still be due before that time, if the clock was ahead and is set back;
but such a message has a higher offset in the timer queue. So a watermark has both a due time and a queue offset, and
stays valid. While the clock only goes forward, the newest watermark covers all older ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.timers.timer_entry import Entries

#: The maximum number of watermarks; each step of the clock backwards adds one at most, and further ones are ignored.
_MOST: Final = 64


class ExpiryWatermark(NamedTuple):
    """A due time and a timer queue offset; timers before both have ended.

    Attributes:
        due_ms: the due time.
        queue_offset: the offset in the timer queue.
        log_end: the records that say how the timers ended, mainly delivered copies, lie before this physical offset.
    """

    due_ms: int
    queue_offset: int
    log_end: int


def add_watermark(known: Sequence[ExpiryWatermark], over: ExpiryWatermark) -> tuple[ExpiryWatermark, ...]:
    """Return the known watermarks with `over`, without those that it covers."""
    if over.due_ms <= 0 or any(each.due_ms >= over.due_ms and each.queue_offset >= over.queue_offset for each in known):
        return tuple(known)
    others = [each for each in known if each.due_ms > over.due_ms or each.queue_offset > over.queue_offset]
    return tuple(known) if len(others) >= _MOST else (*others, over)


def is_expired(entries: Entries, overs: Sequence[ExpiryWatermark]) -> npt.NDArray[np.bool_]:
    """Return for each entry whether a watermark covers it."""
    found = np.zeros(len(entries), np.bool_)
    if len(entries):
        for over in overs:
            found |= (entries["due_ms"] < over.due_ms) & (entries["queue_offset"] < over.queue_offset)
    return found
