"""The next fetch of a queue, under way while its reader looks at what the last one brought.

Records never change, so what was fetched early is what a fetch would bring now. Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch import Fetched

#: So many queues' answers are held at most, the latest ones; each is as large as a fetch may be.
MOST_QUEUES = 4


@dataclass(frozen=True, slots=True)
class _Begun:
    offset: int
    max_messages: int
    task: asyncio.Task[list[Fetched]]

    @property
    def is_ours(self) -> bool:
        """Whether this process began it; after a fork it is the parent's."""
        return self.task.get_loop() is asyncio.get_running_loop()


class ReadAhead:
    """Fetches begun early. `fetch` reads a queue from an offset, so many messages at most, without waiting for any."""

    def __init__(self, fetch: Callable[[MessageQueue, int, int], Coroutine[None, None, list[Fetched]]]) -> None:
        self._fetch = fetch
        self._begun: dict[MessageQueue, _Begun] = {}

    def begin(self, queue: MessageQueue, offset: int, max_messages: int) -> None:
        """Fetch what comes next; instead of what was begun before for this queue, or for the one longest ago."""
        self.forget(queue)
        if len(self._begun) >= MOST_QUEUES:
            self.forget(next(iter(self._begun)))
        task = asyncio.get_running_loop().create_task(self._fetch(queue, offset, max_messages))
        task.add_done_callback(_look_at)
        self._begun[queue] = _Begun(offset, max_messages, task)

    async def take(self, queue: MessageQueue, offset: int, max_messages: int) -> Fetched | None:
        """What was begun for this very fetch; None if nothing was, or it brought nothing or failed: fetch now."""
        begun = self._begun.get(queue)
        if begun is None:
            return None
        if (begun.offset, begun.max_messages) != (offset, max_messages) or not begun.is_ours:
            self.forget(queue)
            return None
        del self._begun[queue]
        try:
            parts = await begun.task
        except RayMQError:
            return None
        return parts[0] if parts and parts[0].error is None else None

    def holds(self, queue: MessageQueue) -> bool:
        """Whether something was begun for a queue. Any thread."""
        return queue in self._begun

    def forget(self, queue: MessageQueue) -> None:
        """Give up what was begun for a queue, if anything."""
        begun = self._begun.pop(queue, None)
        if begun is not None and begun.is_ours:
            begun.task.cancel()

    def clear(self) -> None:
        """Give up everything."""
        for queue in list(self._begun):
            self.forget(queue)


def _look_at(task: asyncio.Task[list[Fetched]]) -> None:
    """A failure that nobody came for is none: who comes asks again."""
    if not task.cancelled():
        task.exception()
