"""Keep the garbage collector from scanning millions of long-lived objects in a broker.

Python's full collection scans all objects that survived before, while it holds the interpreter's lock, whenever their
number has grown by a quarter; with a million objects that takes half a second. Long-lived objects need no scan:
reference counting frees an object with its last reference, and only reference cycles need the collector. So objects
that have survived a collection which took too long are frozen, and not scanned again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

#: The survivors of a full collection that took longer than this are frozen.
LONG_SECONDS: Final = 0.005
#: Full collections five times as often as Python's default, which would take a tenth of a second each.
_THRESHOLDS: Final = (700, 10, 2)


class GcFreezer:
    """A callback for `gc.callbacks`, called for the collections of all threads."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, freeze: Callable[[], None] = gc.freeze) -> None:
        """Create the callback.

        `freeze` excludes all current objects from later collections.
        """
        self._clock = clock
        self._freeze = freeze
        self._began = 0.0

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """Freeze all objects after a full collection that took too long."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began > LONG_SECONDS:
            self._freeze()


def tune_gc() -> None:
    """Tune the collector in this process, which takes no time.

    Reference cycles among the current objects are never freed.
    """
    gc.freeze()
    # Python starts a full collection when a quarter more objects are old than its last one found. The last one, during
    # the start, found many, so the next one would only come at a quarter million. After this one it found none.
    gc.collect()
    gc.set_threshold(*_THRESHOLDS)
    if not any(isinstance(each, GcFreezer) for each in gc.callbacks):
        gc.callbacks.append(GcFreezer())
