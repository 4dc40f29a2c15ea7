"""A clock for durations of days, which continues after restarts.

It counts the seconds in which the store has been open. A wall clock may be days ahead for a while, and the waits that
it ends in that time have ended for good. A clock that restarts with each start of the process never reaches long
durations if starts are frequent. Nobody can set this clock, and it stands still while the store is closed and no client
could connect.

    <store>/raymq/counted_time.json     {"seconds"}: the count when the file was written
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raymq.storage.clock import boottime
from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil, json_file

#: How often the count is saved, in seconds: a crash of the process loses up to so much of it.
SAVED_SECONDS: Final = 60.0
#: Larger saved counts are impossible and are ignored.
_MOST: Final = 1e11
_log = logging.getLogger(__name__)


class UptimeClock:
    """The uptime clock of one store.

    Any thread may read it; one thread at a time saves it.
    """

    def __init__(self, store_directory: Path, elapsed: Callable[[], float] = boottime) -> None:
        """Continue from the saved count; `elapsed` returns seconds that never go back."""
        self._path = store_directory / "raymq" / "counted_time.json"
        self._elapsed = elapsed
        self._saved = _load(self._path)
        self._offset = self._saved - elapsed()

    def __call__(self) -> float:
        """Return the counted seconds."""
        return self._offset + self._elapsed()

    def save(self) -> None:
        """Save the count if the last save is long enough ago.

        If the disk refuses the write, the failure is only logged.
        """
        seconds = self()
        if seconds - self._saved < SAVED_SECONDS:
            return
        try:
            fileutil.make_folder(self._path.parent)
            fileutil.replace(self._path, json_file.encode({"seconds": seconds}).encode())
        except StoreError as error:
            _log.info("the counted time could not be saved: %s", error)
        else:
            self._saved = seconds


def _load(path: Path) -> float:
    try:
        seconds = float(json.loads(fileutil.read_whole(path))["seconds"])
    except (FileNotFoundError, StoreError, *json_file.DECODE_ERRORS):
        return 0.0
    return seconds if 0.0 <= seconds < _MOST else 0.0
