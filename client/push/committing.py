"""Telling the brokers how far their queues are done: each at its own pace, so that one that hangs holds up no other."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from raymq.actors.supervision import is_meant
from raymq.client.push.process_queue import ProcessQueue

_log = logging.getLogger(__name__)


class Committing:
    """Commits of one consumer. Used on one loop.

    `commit` tells a queue's broker. What it raises is told to `failed`, and the queue has to be named again.
    """

    def __init__(
        self,
        commit: Callable[[ProcessQueue], Awaitable[None]],
        failed: Callable[[BaseException], object] = lambda error: _log.error("a commit failed", exc_info=error),
    ) -> None:
        self._commit = commit
        self._failed = failed
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def begin(self, due: Iterable[ProcessQueue]) -> None:
        """Commit these queues; those of a broker that has not answered the last time yet have to be named again."""
        by_broker: defaultdict[str, list[ProcessQueue]] = defaultdict(list)
        for process in due:
            by_broker[process.queue.broker].append(process)
        for broker, processes in by_broker.items():
            if broker not in self._under_way:
                task = asyncio.get_running_loop().create_task(self._commit_each(processes))
                self._under_way[broker] = task
                task.add_done_callback(lambda _, broker=broker: self._under_way.pop(broker))  # type: ignore[misc]

    async def finish(self, due: Callable[[], Iterable[ProcessQueue]] = tuple) -> None:
        """Wait until all brokers have answered, and commit what is `due()` at each as soon as it has.

        So who has no more time than one that hangs takes has told all others.
        """
        asked: set[str] = set()
        while True:
            left = [process for process in due() if process.queue.broker not in asked]
            asked |= {process.queue.broker for process in left} - self._under_way.keys()
            self.begin(left)
            if not self._under_way:
                return
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _commit_each(self, processes: list[ProcessQueue]) -> None:
        await asyncio.gather(*map(self._commit_one, processes))

    async def _commit_one(self, process: ProcessQueue) -> None:
        try:
            await self._commit(process)
        except BaseException as error:  # of one queue; the others' commits go on
            if is_meant(error):
                raise
            self._failed(error)
