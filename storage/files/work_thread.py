"""A thread that does a store's work ahead of its writer: it sleeps until there is some, and ends between two pieces."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class WorkThread(ABC):
    """`_work` wakes it, `_stopping` says that it is to end. Who makes it says when its thread starts."""

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
