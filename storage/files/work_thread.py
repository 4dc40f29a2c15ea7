"""A store's threads: how they begin, and one that does work ahead of the writer, which sleeps until there is some."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from raymq.storage.errors import StoreBusy


def begin(thread: threading.Thread) -> None:
    """Start a thread. StoreBusy: the system has none to give now."""
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreBusy(f"could not start the thread {thread.name} now: {error}") from error


class WorkThread(ABC):
    """`_work` wakes it, `_stopping` says that it is to end, which it does between two pieces of work. Who makes it says
    when its thread starts.
    """

    def __init__(self, name: str) -> None:
        self._work = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stop(self) -> None:
        """Wait for the piece that is being done and drop the rest. May be called again, and before a start."""
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
        """Do what there is, until `_stopping`; on the thread. What it raises would end the thread."""
