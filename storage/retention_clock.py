"""The clock by which log files expire.

It is the wall clock, except after a sudden step ahead.

Deleted files cannot be brought back, and a wall clock may be wrong for a while: an hour or four days ahead, until an
operator corrects it. So a step ahead counts only after the new time has held for an hour; until then files age by the
time that the machine itself has counted. A step back counts at once: files stay longer, and nothing is lost.

The checkpoint keeps the wall time at the machine's start (`CheckpointState.boot_ms`). So a process that starts while
the clock is wrong also detects it. After another start of the machine the only known bound is that the time is not
earlier than the store time of the newest message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

#: Smaller steps in ms are ignored: clocks are adjusted by a second now and then.
STEP_MS: Final = 60_000
#: How long in ms a wall clock has to stay ahead before it is accepted.
HELD_MS: Final = 3_600_000
_log = logging.getLogger(__name__)


class RetentionClock:
    """The retention clock of one store; one thread. Without `elapsed` it is the wall clock.

    Attributes:
        boot_ms: the wall time in ms at the machine's start, to be saved; None: it is not certain. Any thread may read
            it.
    """

    def __init__(
        self, wall_ms: Callable[[], int], elapsed: Callable[[], float] | None, newest_ms: int, saved_ms: int | None
    ) -> None:
        """Begin with the saved wall time.

        Args:
            wall_ms: returns the wall time in ms since the epoch.
            elapsed: returns the seconds since the machine's start (`boottime`).
            newest_ms: when the newest message was stored, 0 if there is none.
            saved_ms: the saved `boot_ms`, if it was saved since the machine's start.
        """
        self._wall_ms = wall_ms
        self._elapsed = elapsed
        #: Since when (by `elapsed`, in ms) the wall clock is ahead, and by how many ms; None: it is not ahead.
        self._ahead: tuple[int, int] | None = None
        self._offset_ms = 0
        self.boot_ms = saved_ms
        if elapsed is not None:
            now_ms = min(newest_ms, wall_ms()) or wall_ms()
            self._offset_ms = now_ms - self._elapsed_ms() if saved_ms is None else saved_ms
            self._follow()
            if saved_ms is None and self._ahead is None:
                self.boot_ms = self._offset_ms

    def now_ms(self) -> int:
        """Return the time by which files expire, in ms since the epoch."""
        if self._elapsed is None:
            return self._wall_ms()
        return self._follow()

    def _follow(self) -> int:
        wall, elapsed = self._wall_ms(), self._elapsed_ms()
        counted = self._offset_ms + elapsed
        step = wall - counted
        if abs(step) <= STEP_MS:
            if self._ahead is not None:
                _log.warning("the wall clock is right again: log files expire by it")
                self._ahead = None
            return wall
        if step < 0:
            self._accept(wall, elapsed)
            return wall
        if self._ahead is None or abs(step - self._ahead[1]) > STEP_MS:
            self._ahead = elapsed, step
            _log.warning(
                "the wall clock is %.1f hours ahead of the expected time: for %d minutes log files do not expire by it",
                step / 3_600_000,
                HELD_MS // 60_000,
            )
        elif elapsed - self._ahead[0] >= HELD_MS:
            _log.warning("the wall clock has stayed %.1f hours ahead: log files expire by it", step / 3_600_000)
            self._accept(wall, elapsed)
            return wall
        return counted

    def _accept(self, wall: int, elapsed: int) -> None:
        self._offset_ms = self.boot_ms = wall - elapsed
        self._ahead = None

    def _elapsed_ms(self) -> int:
        assert self._elapsed is not None
        return int(self._elapsed() * 1000)
