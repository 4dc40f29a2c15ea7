"""Spread the work that one event triggers over several iterations of the event loop.

The calls run after the append that triggered them, and in time slices, so that the loop's other work is not delayed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

#: Queued calls run for this long before the loop's other work gets time.
_SLICE_SECONDS = 0.002
#: Ending a cancelled task takes about 20 us of the loop.
_MAX_CANCELLED = 200


_log = logging.getLogger(__name__)


def call_or_fail(answer: asyncio.Future[Any], look: Callable[[], None]) -> None:
    """Call `look`, which may complete `answer`, and set its exception on `answer`.

    Do nothing if `answer` is already done or cancelled.
    """
    if answer.done():
        return
    try:
        look()
    except Exception as error:  # noqa: BLE001 - the error is the answer
        answer.set_exception(error)


class LoopQueue:
    """Calls that the loop runs soon, in the order in which they were added.

    An exception of a call is logged.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        #: Whether `_run` is scheduled or running.
        self._begun = False

    def add(self, call: Callable[[], None]) -> None:
        """Add a call that the loop runs soon."""
        self._waiting.append(call)
        if not self._begun:
            self._begun = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _SLICE_SECONDS
        try:
            while self._waiting and loop.time() < end:
                call = self._waiting.popleft()
                try:
                    call()
                except Exception:  # noqa: BLE001 - the other calls must still run
                    _log.exception("a queued call has failed; the other calls still run")
        finally:
            self._begun = bool(self._waiting)
            if self._begun:
                loop.call_soon(self._run)


def cancel_in_batches(loop: asyncio.AbstractEventLoop, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, at most `_MAX_CANCELLED` of them per iteration of the loop.

    All tasks that are cancelled in one iteration end in the next one, which many of them would prolong.
    """
    waiting = list(tasks)

    def cancel_some() -> None:
        for _ in range(min(_MAX_CANCELLED, len(waiting))):
            waiting.pop().cancel()
        if waiting:
            loop.call_soon(cancel_some)

    cancel_some()


class LoopTurnLock:
    """A lock that one task per iteration of the loop can take.

    It spreads out tasks that are woken together and that each have much to do.
    """

    def __init__(self) -> None:
        self._taken = asyncio.Lock()

    async def take(self) -> None:
        """Return when no other task holds the lock in this iteration of the loop.

        The caller holds it until its next await.
        """
        await self._taken.acquire()
        asyncio.get_running_loop().call_soon(self._taken.release)
