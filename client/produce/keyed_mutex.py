"""Lock by key, first come first served, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class _Mutex:
    """The lock of one key.

    `users` is the number of tasks that hold it or wait for it.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedMutex(Generic[_Key]):
    """A mutex per key. A key without holder and waiters uses no memory."""

    def __init__(self) -> None:
        self._turns: dict[_Key, _Mutex] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def take(self, key: _Key, seconds: float) -> AsyncIterator[bool]:
        """Hold the key's lock. Yield False if it was not acquired within `seconds`."""
        turn = self._turns.setdefault(key, _Mutex())
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
