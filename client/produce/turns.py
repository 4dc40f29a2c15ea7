"""One at a time, by a key: those who wait get it in the order of asking. On one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class _Turn:
    """`users` have it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedTurns(Generic[_Key]):
    """Of a key that nobody has or waits for nothing is kept."""

    def __init__(self) -> None:
        self._turns: dict[_Key, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def take(self, key: _Key, seconds: float) -> AsyncIterator[bool]:
        """Have the key's turn; False: it has not come within so many seconds."""
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        taken = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    taken = await turn.lock.acquire()
            yield taken
        finally:
            if taken:
                turn.lock.release()
            turn.users -= 1
            if not turn.users:
                del self._turns[key]
