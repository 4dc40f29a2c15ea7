"""Turns on the loop for what an arrival wakes: after the append that woke it, and in slices that hold up nobody."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

#: Turns are given for this long before the loop's other work is done.
_SLICE_SECONDS = 0.002
#: A task that is cancelled takes some 20 us of the loop to end.
_MOST_CANCELLED = 200


_log = logging.getLogger(__name__)


def settle(answer: asyncio.Future[Any], look: Callable[[], None]) -> None:
    """Look again for who waits for `answer`: whatever `look` raises is it. Nothing where he has it, or has gone."""
    if answer.done():
        return
    try:
        look()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        answer.set_exception(error)


class Turns:
    """Calls that wait for their turn, in the order in which they were added. What one raises is logged."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        #: Whether the loop will give turns, or is about it.
        self._begun = False

    def add(self, call: Callable[[], None]) -> None:
        """Let `call` have a turn soon."""
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
                except Exception:  # noqa: BLE001 - whatever it is, the others have their turns
                    _log.exception("a turn has failed; the others go on")
        finally:
            self._begun = bool(self._waiting)
            if self._begun:
                loop.call_soon(self._run)


def cancel_in_slices(loop: asyncio.AbstractEventLoop, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks: where they are very many, in several turns, since in the turn behind it all of them end."""
    waiting = list(tasks)

    def cancel_some() -> None:
        for _ in range(min(_MOST_CANCELLED, len(waiting))):
            waiting.pop().cancel()
        if waiting:
            loop.call_soon(cancel_some)

    cancel_some()


class OneATurn:
    """Of many that are woken together, and have much to look at each, one has its turn in each turn of the loop."""

    def __init__(self) -> None:
        self._taken = asyncio.Lock()

    async def take(self) -> None:
        """Return when nobody else has this turn of the loop; it is the caller's up to what it awaits next."""
        await self._taken.acquire()
        asyncio.get_running_loop().call_soon(self._taken.release)
