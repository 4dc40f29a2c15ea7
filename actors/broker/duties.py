"""The duties of a broker's loop: each is done every so many seconds, whatever becomes of one turn.

Short duties share one timer (`Round`): waking the loop costs more than most of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from raymq.actors.broker.core.duty_troubles import DutyTroubles

_log = logging.getLogger(__name__)


async def repeat(name: str, seconds: float, duty: Callable[[], Awaitable[float | None]]) -> None:
    """Do a duty every so many seconds, or as many as it returns; one turn that fails ends no later ones."""
    troubles = DutyTroubles(name, seconds)
    wait = seconds
    while True:
        await asyncio.sleep(wait)
        try:
            wait = await duty() or seconds
        except Exception as error:  # noqa: BLE001 - whatever it is, the next turn is another one
            verdict = troubles.failed(error)
            wait = verdict.wait
            if verdict.line is not None:
                _log.error("%s", verdict.line, exc_info=error if verdict.in_full else None)
        else:
            troubles.succeeded()


@dataclass(slots=True)
class _Short:
    """A duty of a round: its period in seconds, and when it is due next by the loop's clock."""

    call: Callable[[], object]
    seconds: float
    troubles: DutyTroubles
    due: float = field(default=0.0)


class Round:
    """Duties that neither wait nor take long, done one after the other in one callback of the loop.

    Used on one event loop. A duty that raises is logged as `repeat` does; the others have their turns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """`seconds`: the time between two turns of the loop's; no duty is done more often."""
        self._loop = loop
        self._seconds = seconds
        self._duties: list[_Short] = []
        self._next: asyncio.TimerHandle | None = None

    def add(self, name: str, seconds: float, call: Callable[[], object]) -> None:
        """Do `call` about every so many seconds once the round has begun."""
        self._duties.append(_Short(call, seconds, DutyTroubles(name, seconds)))

    def begin(self) -> None:
        """Have the first turn at once."""
        self._turn()

    def cancel(self) -> None:
        """Have no further turn."""
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the next turn is another one
                verdict = duty.troubles.failed(error)
                wait = verdict.wait
                if verdict.line is not None:
                    _log.error("%s", verdict.line, exc_info=error if verdict.in_full else None)
            else:
                duty.troubles.succeeded()
            duty.due = now + wait - self._seconds / 2  # timers fire late, not early
