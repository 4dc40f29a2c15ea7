"""Work that goes on whatever happens to it: the long-lived tasks of one client, on its event loop.

What a task expects it handles itself. What nobody expected must not end it in silence: it is logged with its reason,
counted, shown in the owner's health, and the work begins anew after a back-off. That holds for SystemExit,
KeyboardInterrupt, GeneratorExit and a CancelledError that nobody asked for, too: they may come out of a user's code.
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

#: The wait before work that failed begins anew, seconds: the first one, and the longest.
FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 5.0
#: Work that ran for so long before it failed again has recovered in between, seconds.
CALM_SECONDS: Final = 30.0
#: Work that failed so often without a success in between does not only stumble.
PERSISTENT: Final = 5
#: So many failures of one kind are logged in full; of more, the 4th, 8th, 16th ... of them.
_LOGGED_IN_FULL: Final = 3

_log = logging.getLogger(__name__)

#: Makes the coroutine of some work, each time that it begins.
Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Failure:
    """What some work failed with, although nobody expected that.

    Attributes:
        work: its name.
        error: the last error, as text.
        count: how often it failed since its client was made; `in_a_row`: without a success since.
        at: when it failed last, seconds since the epoch.
    """

    work: str
    error: str
    count: int
    in_a_row: int
    at: float

    @property
    def persists(self) -> bool:
        """Whether it fails again and again: somebody should look."""
        return self.in_a_row >= PERSISTENT


class Supervisor:
    """The works of one owner. Used on one event loop, but for `report`, `succeeded` and `failures`: any thread."""

    def __init__(
        self,
        owner: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        """`owner` is who it is in the log; `clock` and `sleep` are in seconds."""
        self._owner = owner
        self._clock = clock
        self._sleep = sleep
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._failures: dict[str, Failure] = {}
        self._on_failure: list[Callable[[], None]] = []

    @property
    def works(self) -> list[str]:
        """The names of what runs now, sorted."""
        return sorted(work for task, work in self._tasks.items() if not task.done())

    @property
    def failures(self) -> list[Failure]:
        """What failed unexpectedly, by work."""
        return sorted(self._failures.values(), key=lambda failure: failure.work)

    def keep(self, work: str, run: Work) -> asyncio.Task[None]:
        """Run `run()` until it returns; begin it anew whenever it raises. Cancelling the task ends it."""
        task = asyncio.get_running_loop().create_task(self._keep(work, run), name=work)
        self._tasks[task] = work
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def every(self, work: str, seconds: float, duty: Work) -> asyncio.Task[None]:
        """Do `duty()` every so many seconds, the first time after them. A RayMQError of it is expected."""

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
        """Run `run` to its end, and report what nobody expected of it."""

        async def reported() -> None:
            try:
                await run
            except BaseException as error:
                if is_meant(error):
                    raise
                self.report(work, error)

        return asyncio.get_running_loop().create_task(reported(), name=work)

    def report(self, work: str, error: BaseException) -> Failure:
        """Some work failed with what nobody expected: log and count it. Any thread."""
        before = self._failures.get(work)
        count, in_a_row = (0, 0) if before is None else (before.count, before.in_a_row)
        failure = Failure(work, repr(error), count + 1, in_a_row + 1, time.time())
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
        for told in list(self._on_failure):
            told()
        return failure

    def succeeded(self, work: str) -> None:
        """Some work did what it should. Any thread."""
        before = self._failures.get(work)
        if before is not None and before.in_a_row:
            self._failures[work] = Failure(work, before.error, before.count, 0, before.at)

    def on_failure(self, told: Callable[[], None]) -> None:
        """Call `told`, on the thread that reports, after each report."""
        self._on_failure.append(told)

    def cancel(self) -> None:
        """End everything that runs."""
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
                if is_meant(error, me):
                    raise
                if self._clock() - began >= CALM_SECONDS:
                    backoff.reset()
                    self.succeeded(work)
                self.report(work, error)
                await self._sleep(backoff.next_delay())
            else:
                self.succeeded(work)
                return


def is_meant(error: BaseException, task: asyncio.Task[Any] | None = None) -> bool:
    """Whether somebody ends this very task (None: the current one), rather than something within raised the like."""
    if task is None:
        task = asyncio.current_task()
        assert task is not None
    if isinstance(error, asyncio.CancelledError):
        return task.cancelling() > 0
    if isinstance(error, GeneratorExit):  # its coroutine is closed: then it is not what runs on a loop
        try:
            return asyncio.current_task() is not task
        except RuntimeError:
            return True
    return False
