"""What of the timers is over for good, so that the timer log may forget it, whatever the clock says later.

All that was due before a time has ended once. What comes afterwards may be due before that time all the same, for the
clock may have been ahead and be set back; but it stands behind in the timer queue. So what is over is told by both, and
stays true. While the clock only goes on, the newest of these says all that the older ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.timers.entry import Entries

#: Each step of the clock backwards leaves one more at most. With so many no further one is taken.
_MOST: Final = 64


class Over(NamedTuple):
    """What is due before a time and stands before an offset of the timer queue has ended.

    Attributes:
        due_ms: that time.
        queue_offset: that offset.
        log_end: what says how it ended, copies above all, lies before this place of the log.
    """

    due_ms: int
    queue_offset: int
    log_end: int


def with_over(known: Sequence[Over], over: Over) -> tuple[Over, ...]:
    """What is over if that is so, too; without those that say less than it."""
    if over.due_ms <= 0 or any(each.due_ms >= over.due_ms and each.queue_offset >= over.queue_offset for each in known):
        return tuple(known)
    others = [each for each in known if each.due_ms > over.due_ms or each.queue_offset > over.queue_offset]
    return tuple(known) if len(others) >= _MOST else (*others, over)


def is_over(entries: Entries, overs: Sequence[Over]) -> npt.NDArray[np.bool_]:
    """Of each entry, whether what it tells of is over."""
    found = np.zeros(len(entries), np.bool_)
    if len(entries):
        for over in overs:
            found |= (entries["due_ms"] < over.due_ms) & (entries["queue_offset"] < over.queue_offset)
    return found
