"""A clock for durations of days, which continues after restarts.

It counts the seconds in which the store has been open. A wall clock may be days ahead for a while, and the waits that
it ends in that time have ended for good. A clock that restarts with each start of the process never reaches long
durations if starts are frequent. Nobody can set this clock, and it stands still while the store is closed and no client
could connect. The count is saved in a table of the state journal (`counted_time`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from raymq.storage.clock import boottime
from raymq.storage.errors import StoreError
from raymq.storage.tables.counted_time import CountedTime

#: How often the count is saved, in seconds: a crash of the process loses up to so much of it.
SAVED_SECONDS: Final = 60.0
_log = logging.getLogger(__name__)


class UptimeClock:
    """The uptime clock of one store.

    Any thread may read it; one thread at a time saves it.
    """

    def __init__(self, table: CountedTime, elapsed: Callable[[], float] = boottime) -> None:
        """Continue from the saved count; `elapsed` returns seconds that never go back."""
        self._table = table
        self._elapsed = elapsed
        self._offset = table.seconds - elapsed()

    def __call__(self) -> float:
        """Return the counted seconds."""
        return self._offset + self._elapsed()

    def save(self) -> None:
        """Save the count if the last save is long enough ago.

        If the disk refuses the write, the failure is only logged.
        """
        seconds = self()
        if seconds - self._table.seconds < SAVED_SECONDS:
            return
        try:
            self._table.save(seconds)
        except StoreError as error:
            _log.info("the counted time could not be saved: %s", error)
