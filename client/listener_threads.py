"""Run listener calls on as few threads as the load needs, up to a limit.

A thread that has ended a call takes the next one itself. Only one thread at a time is woken: by the thread that hands
over a call, or by the thread that was woken last if there are more calls. So few threads make quick calls and do not
compete for the interpreter, and as many threads as allowed make calls that wait.
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
    """A pool of threads that run `run(call)` for each call.

    One thread hands over calls and closes the pool. An exception of `run` ends neither its thread nor other calls: it
    is logged and passed to `failed`. The threads are daemons. A program that ends stops its consumers, which wait for
    the running calls.
    """

    def __init__(
        self,
        most: int,
        name: str,
        run: Callable[[_Call], None],
        failed: Callable[[BaseException], object] = lambda error: _log.error("a call failed", exc_info=error),
        lacking: Callable[[RuntimeError], object] = lambda error: _log.error("no thread can be started: %s", error),
    ) -> None:
        """Initialize the pool.

        Args:
            lacking: called if the system cannot start another thread. `start_pending` tries again.
        """
        self._most = most
        self._name = name
        self._run = run
        self._failed = failed
        self._lacking = lacking
        self._calls: deque[_Call] = deque()
        #: The locks of the sleeping threads; each waits for its own.
        self._sleeping: list[threading.Lock] = []
        self._on_its_way = False
        self._started = 0
        self._closed = False

    def submit(self, call: _Call) -> None:
        """Hand over a call, after the earlier ones. A closed pool ignores it."""
        if self._closed:
            return
        self._calls.append(call)
        self.start_pending()

    def start_pending(self) -> bool:
        """Wake or start a thread for the waiting calls.

        Return False if a thread is needed and cannot be started. May be called repeatedly.
        """
        if self._closed or len(self._calls) <= len(self._sleeping) + self._on_its_way or self._started >= self._most:
            if self._calls:
                self._wake_one()
            return True
        try:
            threading.Thread(target=self._work, name=f"{self._name}_{self._started}", daemon=True).start()
        except RuntimeError as error:  # the system cannot start another thread now
            if threading.main_thread().is_alive():  # else the program ends and no thread can be started
                self._lacking(error)
            return False
        self._started += 1
        return True

    def withdraw(self) -> list[_Call]:
        """Remove and return the calls that have not begun, in order."""
        withdrawn = []
        while (call := self._next()) is not None:
            withdrawn.append(call)
        return withdrawn

    def close(self) -> list[_Call]:
        """End each thread when its call has ended.

        Return the calls that have not begun.
        """
        self._closed = True
        withdrawn = self.withdraw()
        while self._sleeping:
            self._sleeping.pop().release()
        return withdrawn

    def _next(self) -> _Call | None:
        try:
            return self._calls.popleft()
        except IndexError:
            return None

    def _wake_one(self) -> None:
        """Wake one sleeping thread, unless one is waking already. Any thread may call this.

        If two threads call this at the same time, each wakes one thread at worst.
        """
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
                except BaseException as error:  # noqa: BLE001 - the thread runs all other calls, too
                    self._failed(error)
            elif self._closed:
                return
            else:
                self._sleep(sleep)

    def _sleep(self, lock: threading.Lock) -> None:
        """Sleep until another thread wakes this one.

        A call that arrives meanwhile is found here, or by the thread that wakes this one.
        """
        self._sleeping.append(lock)
        if self._calls or self._closed:
            try:
                self._sleeping.remove(lock)
            except ValueError:
                pass  # another thread is about to release it
            else:
                return
        lock.acquire()
        self._on_its_way = False
