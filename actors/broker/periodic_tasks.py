"""Run the periodic tasks of a broker's loop; a failed turn does not end them.

Short tasks share one timer (`PeriodicTasks`): waking the loop costs more than most of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from raymq.actors.broker.core.periodic_retry import PeriodicTaskRetry

_log = logging.getLogger(__name__)


async def run_periodically(name: str, seconds: float, duty: Callable[[], Awaitable[float | None]]) -> None:
    """Await a task periodically, with a pause of `seconds` or as many as it returns.

    A turn that fails is logged, and later turns still run.
    """
    troubles = PeriodicTaskRetry(name, seconds)
    wait = seconds
    while True:
        await asyncio.sleep(wait)
        try:
            wait = await duty() or seconds
        except Exception as error:  # noqa: BLE001 - a failed run must not stop the next one
            verdict = troubles.failed(error)
            wait = verdict.wait
            if verdict.line is not None:
                _log.error("%s", verdict.line, exc_info=error if verdict.with_traceback else None)
        else:
            troubles.succeeded()


@dataclass(slots=True)
class _PeriodicTask:
    """A periodic task: its period in seconds, and its next due time."""

    call: Callable[[], object]
    seconds: float
    troubles: PeriodicTaskRetry
    due: float = field(default=0.0)


class PeriodicTasks:
    """Short tasks that never wait, run one after the other in one callback.

    They run on one event loop. A task that raises is logged as `run_periodically` does; the others still run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Create an empty round; `seconds` between two turns is the shortest period of a task."""
        self._loop = loop
        self._seconds = seconds
        self._duties: list[_PeriodicTask] = []
        self._next: asyncio.TimerHandle | None = None

    def add(self, name: str, seconds: float, call: Callable[[], object]) -> None:
        """Call `call` about every `seconds` seconds once the round has begun."""
        self._duties.append(_PeriodicTask(call, seconds, PeriodicTaskRetry(name, seconds)))

    def begin(self) -> None:
        """Run the first turn at once."""
        self._turn()

    def cancel(self) -> None:
        """Run no further turn."""
        if self._next is not None:
            self._next.cancel()

    def _turn(self) -> None:
        self._next = self._loop.call_later(self._seconds, self._turn)
        now = self._loop.time()
        for duty in self._duties:
            if now < duty.due:
                continue
            wait = duty.seconds
            try:
                duty.call()
            except Exception as error:  # noqa: BLE001 - a failed run must not stop the next one
                verdict = duty.troubles.failed(error)
                wait = verdict.wait
                if verdict.line is not None:
                    _log.error("%s", verdict.line, exc_info=error if verdict.with_traceback else None)
            else:
                duty.troubles.succeeded()
            duty.due = now + wait - self._seconds / 2  # timers fire late, not early
