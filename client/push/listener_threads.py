"""The threads that make a consumer's calls: as many as these keep busy, up to a limit.

A thread that has ended a call takes the next one itself, and one thread at a time is woken: by who hands over a call,
or by the one that was woken before if there is more to do. So calls that end at once are made by few threads, which do
not fight for the interpreter, and calls that wait for something by as many as there may be.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

_Call = TypeVar("_Call")

_log = logging.getLogger(__name__)


class ListenerThreads(Generic[_Call]):
    """Makes each call by `run(call)`. Calls are handed over, and it is closed, by one thread.

    What `run` raises ends neither its thread nor other calls: it is logged, and told to `failed`.

    The threads are daemons: a program that ends stops its consumers, which wait for what runs.
    """

    def __init__(
        self,
        most: int,
        name: str,
        run: Callable[[_Call], None],
        failed: Callable[[BaseException], object] = lambda error: _log.error("a call failed", exc_info=error),
        lacking: Callable[[RuntimeError], object] = lambda error: _log.error("no thread can be started: %s", error),
    ) -> None:
        """`lacking` is told when the system has no room for one more thread: `urge` tries again."""
        self._most = most
        self._name = name
        self._run = run
        self._failed = failed
        self._lacking = lacking
        self._calls: deque[_Call] = deque()
        #: Each thread that sleeps waits for a lock of its own.
        self._sleeping: list[threading.Lock] = []
        self._on_its_way = False
        self._started = 0
        self._closed = False

    def submit(self, call: _Call) -> None:
        """Make this call, after those that were handed over before; nothing once it is closed."""
        if self._closed:
            return
        self._calls.append(call)
        self.urge()

    def urge(self) -> bool:
        """See to it that what waits is made; False if it lacks a thread. To be called again and again, too."""
        if self._closed or len(self._calls) <= len(self._sleeping) + self._on_its_way or self._started >= self._most:
            if self._calls:
                self._wake_one()
            return True
        try:
            threading.Thread(target=self._work, name=f"{self._name}_{self._started}", daemon=True).start()
        except RuntimeError as error:  # the system has no room for one more now
            if threading.main_thread().is_alive():  # else the program ends: then none can be started
                self._lacking(error)
            return False
        self._started += 1
        return True

    def withdraw(self) -> list[_Call]:
        """Take back what was handed over and not begun, in its order."""
        left = []
        while (call := self._next()) is not None:
            left.append(call)
        return left

    def close(self) -> list[_Call]:
        """End the threads, each when its call has ended; the calls that were not begun."""
        self._closed = True
        left = self.withdraw()
        while self._sleeping:
            self._sleeping.pop().release()
        return left

    def _next(self) -> _Call | None:
        try:
            return self._calls.popleft()
        except IndexError:
            return None

    def _wake_one(self) -> None:
        """Any thread. Two that come here together wake one thread each, at worst."""
        if not self._on_its_way and self._sleeping:
            try:
                sleeper = self._sleeping.pop()
            except IndexError:
                return
            self._on_its_way = True
            sleeper.release()

    def _work(self) -> None:
        sleep = threading.Lock()
        sleep.acquire()
        while True:
            call = self._next()
            if call is not None:
                if self._calls:
                    self._wake_one()
                try:
                    self._run(call)
                except BaseException as error:  # noqa: BLE001 - the thread is there for all other calls, too
                    self._failed(error)
            elif self._closed:
                return
            else:
                self._sleep(sleep)

    def _sleep(self, lock: threading.Lock) -> None:
        """Until somebody wakes this thread. A call that came while it lay down is seen here, or by whom it wakes it."""
        self._sleeping.append(lock)
        if self._calls or self._closed:
            try:
                self._sleeping.remove(lock)
            except ValueError:
                pass  # somebody is about to release it
            else:
                return
        lock.acquire()
        self._on_its_way = False
