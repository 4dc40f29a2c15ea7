"""A clock of what lasts for days: the seconds that a store has been open, counted over restarts.

A wall clock may be days ahead for a while, and what it ends then has ended. A clock that begins anew with each start
ends nothing where starts are many. This one nobody sets, and it stands still while nobody could be heard.

    <store>/raymq/counted_time.json     {"seconds"}: how many when this was written
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

#: What is counted is written down so often, in seconds: so much of it is forgotten when the process dies.
SAVED_SECONDS: Final = 60.0
#: More than can have been counted.
_MOST: Final = 1e11
_log = logging.getLogger(__name__)


class CountedTime:
    """The clock of one store. Any thread reads it; one at a time saves it."""

    def __init__(self, store_directory: Path, elapsed: Callable[[], float] = boottime) -> None:
        """Go on from what was written down last. `elapsed` is seconds that do not go back."""
        self._path = store_directory / "raymq" / "counted_time.json"
        self._elapsed = elapsed
        self._saved = _load(self._path)
        self._offset = self._saved - elapsed()

    def __call__(self) -> float:
        """Seconds."""
        return self._offset + self._elapsed()

    def save(self) -> None:
        """Write down what was counted, if that is long ago. A disk that does not take it keeps nobody from his work."""
        seconds = self()
        if seconds - self._saved < SAVED_SECONDS:
            return
        try:
            fileutil.make_folder(self._path.parent)
            fileutil.replace(self._path, json_file.encode({"seconds": seconds}).encode())
        except StoreError as error:
            _log.info("what was counted of the time is not kept: %s", error)
        else:
            self._saved = seconds


def _load(path: Path) -> float:
    try:
        seconds = float(json.loads(fileutil.read_whole(path))["seconds"])
    except (FileNotFoundError, StoreError, *json_file.ANOTHER_FORM):
        return 0.0
    return seconds if 0.0 <= seconds < _MOST else 0.0
