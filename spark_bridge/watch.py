"""Jobs that would wait for ever: an executor that Ray was told to kill is never replaced, and Spark waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: How long Spark may be without any executor before its jobs are cancelled. One that crashed is back within seconds.
PATIENCE_SECONDS: Final = 60.0
_INTERVAL_SECONDS: Final = 2.0


class ExecutorWatch:
    """Calls `give_up` once whenever there has been no executor for `patience` seconds. Runs from start to close()."""

    def __init__(
        self,
        executors: Callable[[], int | None],
        give_up: Callable[[], None],
        *,
        patience: float = PATIENCE_SECONDS,
        interval: float = _INTERVAL_SECONDS,
    ) -> None:
        """`executors` says how many there are, None where it cannot; both are called on the watch's own thread."""
        self._executors = executors
        self._give_up = give_up
        self._patience = patience
        self._interval = interval
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raymq-spark-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch; `give_up` is not called any more when this returns."""
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
