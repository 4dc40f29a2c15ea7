"""A broker's process has millions of objects that stay: to look through them all for garbage stops everybody.

Python's collector goes through every object that survived before, with the interpreter in its hand, whenever a quarter
more have; at a million objects that is half a second. What stays is of no interest to it: objects that nobody needs
any more are freed when their last reference goes, and only circles of them need the collector. So what has survived a
look that took too long is not looked at again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

#: A look that took longer than this is not to be repeated.
LONG_SECONDS: Final = 0.005
#: Python looks at everything after five times as many new objects, which takes it a tenth of a second.
_THRESHOLDS: Final = (700, 10, 2)


class ShortCollections:
    """What follows the process's collections, in whatever thread they happen; see `gc.callbacks`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, freeze: Callable[[], None] = gc.freeze) -> None:
        """`freeze` takes all that there is out of the collector's sight."""
        self._clock = clock
        self._freeze = freeze
        self._began = 0.0

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """A collection begins or has ended."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began > LONG_SECONDS:
            self._freeze()


def keep_collections_short() -> None:
    """In this process, from now on: takes no time. Circles of objects that are there now are never freed."""
    gc.freeze()
    # Python looks at what is old when a quarter more is than it found at its last such look. What it found while the
    # process began is frozen: with that number the next look would be at a quarter million objects. Now it finds none.
    gc.collect()
    gc.set_threshold(*_THRESHOLDS)
    if not any(isinstance(each, ShortCollections) for each in gc.callbacks):
        gc.callbacks.append(ShortCollections())
