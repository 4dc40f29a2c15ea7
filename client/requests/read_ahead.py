"""The next fetch of a queue, under way while its reader looks at what the last one brought; on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch import Fetched
from raymq.client.requests.early_fetches import EarlyFetches

_Task = asyncio.Task[list[Fetched]]


class ReadAhead:
    """Fetches begun early. `fetch` reads a queue from an offset, so many messages at most, without waiting for any."""

    def __init__(self, fetch: Callable[[MessageQueue, int, int], Coroutine[None, None, list[Fetched]]]) -> None:
        self._fetch = fetch
        self._ahead: EarlyFetches[_Task] = EarlyFetches(_give_up, _is_ours)

    def begin(self, queue: MessageQueue, offset: int, max_messages: int) -> None:
        """Fetch what comes next; instead of what was begun before for this queue, or for the one longest ago."""
        self._ahead.make_room(queue)
        task = asyncio.get_running_loop().create_task(self._fetch(queue, offset, max_messages))
        task.add_done_callback(_look_at)
        self._ahead.put(queue, offset, max_messages, task)

    async def take(self, queue: MessageQueue, offset: int, max_messages: int) -> Fetched | None:
        """What was begun for this very fetch; None if nothing was, or it brought nothing or failed: fetch now."""
        task = self._ahead.take(queue, offset, max_messages)
        if task is None:
            return None
        try:
            parts = await task
        except RayMQError:
            return None
        return parts[0] if parts and parts[0].error is None else None

    def holds(self, queue: MessageQueue) -> bool:
        """Whether something was begun for a queue. Any thread."""
        return queue in self._ahead

    def forget(self, queue: MessageQueue) -> None:
        """Give up what was begun for a queue, if anything."""
        self._ahead.forget(queue)

    def clear(self) -> None:
        """Give up everything."""
        self._ahead.clear()


def _is_ours(task: _Task) -> bool:
    """Whether this process began it; after a fork it is the parent's."""
    return task.get_loop() is asyncio.get_running_loop()


def _give_up(task: _Task) -> None:
    if _is_ours(task):
        task.cancel()


def _look_at(task: _Task) -> None:
    """A failure that nobody came for is none: who comes asks again."""
    if not task.cancelled():
        task.exception()
