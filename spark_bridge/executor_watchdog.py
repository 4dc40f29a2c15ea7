"""Cancel Spark jobs that have no executor left.

An executor that was killed through Ray is never replaced, and Spark would wait for it without end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: The seconds without any executor after which the jobs are cancelled. A crashed executor is replaced within seconds.
NO_EXECUTOR_SECONDS: Final = 60.0
_INTERVAL_SECONDS: Final = 2.0


class ExecutorWatchdog:
    """A thread that calls `give_up` whenever no executor exists for `patience` seconds.

    It runs from its creation to close().
    """

    def __init__(
        self,
        executors: Callable[[], int | None],
        give_up: Callable[[], None],
        *,
        patience: float = NO_EXECUTOR_SECONDS,
        interval: float = _INTERVAL_SECONDS,
    ) -> None:
        """Start the thread, on which both functions are called.

        `executors` returns the number of executors, or None if it cannot be determined.
        """
        self._executors = executors
        self._give_up = give_up
        self._patience = patience
        self._interval = interval
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raymq-spark-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; `give_up` is not called after this returns."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        seen = time.monotonic()
        while not self._closed.wait(self._interval):
            if self._executors() != 0:
                seen = time.monotonic()
            elif time.monotonic() - seen >= self._patience:
                self._give_up()
                seen = time.monotonic()
