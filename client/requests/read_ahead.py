"""Fetch the next messages of a queue in advance, on the event loop.

The fetch runs while the reader processes the messages of the previous one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.client.requests.prefetch_table import PrefetchTable

_Task = asyncio.Task[list[Fetched]]


class ReadAhead:
    """The fetches in advance of one reader.

    `fetch` reads a queue from an offset, at most that many messages, without waiting for new ones.
    """

    def __init__(self, fetch: Callable[[MessageQueue, int, int], Coroutine[None, None, list[Fetched]]]) -> None:
        self._fetch = fetch
        self._ahead: PrefetchTable[_Task] = PrefetchTable(_give_up, _is_ours)

    def begin(self, queue: MessageQueue, offset: int, max_messages: int) -> None:
        """Start a fetch in advance.

        It replaces the one of this queue; if the table is full, the oldest one is dropped, too.
        """
        self._ahead.make_room(queue)
        task = asyncio.get_running_loop().create_task(self._fetch(queue, offset, max_messages))
        task.add_done_callback(_look_at)
        self._ahead.put(queue, offset, max_messages, task)

    async def take(self, queue: MessageQueue, offset: int, max_messages: int) -> Fetched | None:
        """Return the result of the fetch in advance with these parameters.

        Return None if there is none, or if it failed or returned no records or an error: the caller then sends a new
        fetch.
        """
        task = self._ahead.take(queue, offset, max_messages)
        if task is None:
            return None
        try:
            parts = await task
        except RayMQError:
            return None
        return parts[0] if parts and parts[0].error is None else None

    def holds(self, queue: MessageQueue) -> bool:
        """Return True if a queue has a fetch in advance. Any thread."""
        return queue in self._ahead

    def forget(self, queue: MessageQueue) -> None:
        """Drop the fetch in advance of a queue, if any."""
        self._ahead.forget(queue)

    def clear(self) -> None:
        """Drop all fetches in advance."""
        self._ahead.clear()


def _is_ours(task: _Task) -> bool:
    """Return True if this process started the task; after a fork it is the parent's."""
    return task.get_loop() is asyncio.get_running_loop()


def _give_up(task: _Task) -> None:
    if _is_ours(task):
        task.cancel()


def _look_at(task: _Task) -> None:
    """Retrieve the exception of an unused fetch, so that asyncio does not log it.

    The reader sends the fetch again when it needs the messages.
    """
    if not task.cancelled():
        task.exception()
