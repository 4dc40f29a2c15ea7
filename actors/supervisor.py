"""Supervise the long-lived tasks of one client, and restart them after unexpected errors.

The tasks run on the client's event loop, and handle expected errors themselves. After an unexpected error, a task is
not ended silently: the error is logged and counted, reported in the owner's health, and the work restarts after a
back-off. That also holds for SystemExit, KeyboardInterrupt, GeneratorExit and a CancelledError without a request to
cancel, because user code may raise them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from raymq.actors.backoff import Backoff
from raymq.actors.errors import RayMQError

#: The wait before failed work restarts, in seconds: the first one, and the longest.
FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 5.0
#: Work that ran for so many seconds before it failed again counts as recovered in between.
CALM_SECONDS: Final = 30.0
#: Work that failed so often without a success in between fails persistently.
PERSISTENT: Final = 5
#: So many failures in a row are logged with a traceback; after them only the 4th, 8th, 16th ... without one.
_LOGGED_IN_FULL: Final = 3

_log = logging.getLogger(__name__)

#: Creates the coroutine of some work, each time that it starts.
Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class WorkFailure:
    """The unexpected failures of some work.

    Attributes:
        work: the name of the work.
        error: the last error, as text.
        count: the number of failures since the client was created; `in_a_row`: since the last success.
        at: the time of the last failure, in seconds since the epoch.
    """

    work: str
    error: str
    count: int
    in_a_row: int
    at: float

    @property
    def persists(self) -> bool:
        """Return True if the work fails repeatedly and needs attention."""
        return self.in_a_row >= PERSISTENT


class Supervisor:
    """The supervised tasks of one owner.

    Used on one event loop, except for `report`, `succeeded` and `failures`, which any thread may use.
    """

    def __init__(
        self,
        owner: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        """Create a supervisor without tasks.

        `owner` is the name of the owner in the log; `clock` and `sleep` are in seconds.
        """
        self._owner = owner
        self._clock = clock
        self._sleep = sleep
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._failures: dict[str, WorkFailure] = {}
        self._on_failure: list[Callable[[], None]] = []

    @property
    def works(self) -> list[str]:
        """Return the names of the running tasks, sorted."""
        return sorted(work for task, work in self._tasks.items() if not task.done())

    @property
    def failures(self) -> list[WorkFailure]:
        """Return the unexpected failures, sorted by work."""
        return sorted(self._failures.values(), key=lambda failure: failure.work)

    def keep(self, work: str, run: Work) -> asyncio.Task[None]:
        """Run `run()` until it returns, and restart it whenever it raises.

        To cancel the task ends it.
        """
        task = asyncio.get_running_loop().create_task(self._keep(work, run), name=work)
        self._tasks[task] = work
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def every(self, work: str, seconds: float, duty: Work) -> asyncio.Task[None]:
        """Call `duty()` every so many seconds, first after one interval.

        A RayMQError of `duty()` counts as expected.
        """

        async def again_and_again() -> None:
            while True:
                await self._sleep(seconds)
                try:
                    await duty()
                except RayMQError as error:
                    _log.debug("%s: %s: %s", self._owner, work, error)
                self.succeeded(work)

        return self.keep(work, again_and_again)

    def once(self, work: str, run: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Run `run` once to its end, and report an unexpected error."""

        async def reported() -> None:
            try:
                await run
            except BaseException as error:
                if is_own_cancellation(error):
                    raise
                self.report(work, error)

        return asyncio.get_running_loop().create_task(reported(), name=work)

    def report(self, work: str, error: BaseException) -> WorkFailure:
        """Log and count an unexpected failure of some work. Any thread."""
        before = self._failures.get(work)
        count, in_a_row = (0, 0) if before is None else (before.count, before.in_a_row)
        failure = WorkFailure(work, repr(error), count + 1, in_a_row + 1, time.time())
        self._failures[work] = failure
        if failure.in_a_row <= _LOGGED_IN_FULL or not failure.in_a_row & (failure.in_a_row - 1):
            in_full = failure.in_a_row <= _LOGGED_IN_FULL
            _log.error(
                "%s: %s failed unexpectedly (%d times, %d in a row) and goes on: %r",
                self._owner,
                work,
                failure.count,
                failure.in_a_row,
                error,
                exc_info=error if in_full else None,
            )
        for callback in list(self._on_failure):
            callback()
        return failure

    def succeeded(self, work: str) -> None:
        """Record a success of some work. Any thread."""
        before = self._failures.get(work)
        if before is not None and before.in_a_row:
            self._failures[work] = WorkFailure(work, before.error, before.count, 0, before.at)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each report, on the thread that reports."""
        self._on_failure.append(callback)

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in list(self._tasks):
            task.cancel()

    async def _keep(self, work: str, run: Work) -> None:
        me = asyncio.current_task()
        assert me is not None
        backoff = Backoff(first=FIRST_SECONDS, cap=LONGEST_SECONDS)
        while True:
            began = self._clock()
            try:
                await run()
            except BaseException as error:
                if is_own_cancellation(error, me):
                    raise
                if self._clock() - began >= CALM_SECONDS:
                    backoff.reset()
                    self.succeeded(work)
                self.report(work, error)
                await self._sleep(backoff.next_delay())
            else:
                self.succeeded(work)
                return


def is_own_cancellation(error: BaseException, task: asyncio.Task[Any] | None = None) -> bool:
    """Return True if this task itself is being cancelled.

    Return False if code within the task raised the same kind of exception. `task` is None for the current task.
    """
    if task is None:
        task = asyncio.current_task()
        assert task is not None
    if isinstance(error, asyncio.CancelledError):
        return task.cancelling() > 0
    if isinstance(error, GeneratorExit):  # a coroutine that is being closed is not the current task of a loop
        try:
            return asyncio.current_task() is not task
        except RuntimeError:
            return True
    return False
