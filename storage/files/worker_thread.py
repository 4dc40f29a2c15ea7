"""Start a store's threads, and run work ahead of the writer in one of them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from raymq.storage.errors import StoreBusy


def begin(thread: threading.Thread) -> None:
    """Start a thread; raise StoreBusy if the system cannot provide one now."""
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreBusy(f"could not start the thread {thread.name} now: {error}") from error


class WorkerThread(ABC):
    """A thread that sleeps until there is work ahead of the writer.

    `_work` wakes it. `_stopping` makes it end between two pieces of work. The creator decides when the thread starts.
    """

    def __init__(self, name: str) -> None:
        self._work = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stop(self) -> None:
        """Wait for the current piece of work and drop the rest.

        May be called again, and before a start.
        """
        self._stopping = True
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._work.wait()
            self._work.clear()
            self._do_work()

    @abstractmethod
    def _do_work(self) -> None:
        """Do the pending work until `_stopping` is set; runs on the thread.

        An exception ends the thread.
        """
