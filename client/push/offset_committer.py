"""Commit offsets to the brokers, each independently, so that none delays the others."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from raymq.actors.supervisor import is_own_cancellation
from raymq.client.push.process_queue import ProcessQueue

_log = logging.getLogger(__name__)


class OffsetCommitter:
    """The commits of one consumer. Used on one loop.

    `commit` commits one queue. Its exceptions are passed to `failed`, and the queue has to be passed again.
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
        """Start to commit these queues.

        Queues of a broker whose last commit is still in flight are skipped and have to be passed again.
        """
        by_broker: defaultdict[str, list[ProcessQueue]] = defaultdict(list)
        for process in due:
            by_broker[process.queue.broker].append(process)
        for broker, processes in by_broker.items():
            if broker not in self._under_way:
                task = asyncio.get_running_loop().create_task(self._commit_each(processes))
                self._under_way[broker] = task
                task.add_done_callback(lambda _, broker=broker: self._under_way.pop(broker))  # type: ignore[misc]

    async def finish(self, due: Callable[[], Iterable[ProcessQueue]] = tuple) -> None:
        """Wait for all commits, and commit the queues that are due.

        The queues in `due()` of a broker are committed as soon as the broker has no commit in flight. So a caller that
        is cancelled while one broker hangs has committed at all others.
        """
        begun_brokers: set[str] = set()
        while True:
            remaining = [process for process in due() if process.queue.broker not in begun_brokers]
            begun_brokers |= {process.queue.broker for process in remaining} - self._under_way.keys()
            self.begin(remaining)
            if not self._under_way:
                return
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _commit_each(self, processes: list[ProcessQueue]) -> None:
        await asyncio.gather(*map(self._commit_one, processes))

    async def _commit_one(self, process: ProcessQueue) -> None:
        try:
            await self._commit(process)
        except BaseException as error:  # an error of one queue; the other commits go on
            if is_own_cancellation(error):
                raise
            self._failed(error)
