"""Turns on the loop for what an arrival wakes: after the append that woke it, and in slices that hold up nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: Turns are given for this long before the loop's other work is done.
_SLICE_SECONDS = 0.002


class Turns:
    """Calls that wait for their turn, in the order in which they were added. They must not raise."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, call: Callable[[], None]) -> None:
        """Let `call` have a turn soon."""
        self._waiting.append(call)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _SLICE_SECONDS
        while self._waiting and loop.time() < end:
            self._waiting[0]()
            self._waiting.popleft()  # not before: `add` runs us only where nobody waits
        if self._waiting:
            loop.call_soon(self._run)
