"""Commits of staged writes on one broker: one after the other, each to its end, whoever wants it.

Used on the broker's event loop, which breathes between two chunks; what waits for the disk does so on other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, ParamSpec, TypeVar

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.writes.deciding import ABANDONED_SECONDS
from raymq.actors.errors import BrokerUnavailable, StoreError, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.storage.tables.staging import MissingRows

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Appended(NamedTuple):
    """What a commit has done: so many records were added now, and so many rows do not come; None: all are there."""

    added: int
    missing: MissingRows | None


class StagedCommits:
    """Appends what is committed, and has it seen when it is on disk."""

    def __init__(self, core: BrokerCore, durable: Callable[[], Awaitable[SendStatus]] | None) -> None:
        """`durable`: as in `BrokerContext`."""
        self._core = core
        self._durable = durable
        self._turn = asyncio.Lock()
        #: Whether rows are committed or dropped is written down for one write after the other.
        self._beginning = asyncio.Lock()
        self._deciding = asyncio.Lock()
        self._running: dict[str, asyncio.Task[Appended]] = {}
        self._stopping = False

    async def commit(self, transaction: str, parts: Mapping[str, int]) -> Appended:
        """Append the chunks of these parts, of so many rows each, that are not in the log yet.

        It goes on if who waits for it is cancelled. May be repeated.

        Raises:
            StoreFull, StoreFailed, WriteUnknown: it is not done and goes on by itself later; nobody sees a part of it.
            BrokerUnavailable: the broker is stopping.
        """
        task = self._running.get(transaction)
        if task is None:
            task = asyncio.ensure_future(self._commit(transaction, parts))
            self._running[transaction] = task
            task.add_done_callback(lambda done: self._ended(transaction, done))
        return await asyncio.shield(task)

    async def decide(self, call: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        """What a method of the core's `writes` returns, or raises: called on another thread, one at a time."""
        async with self._deciding:
            return await asyncio.to_thread(call, *arguments, **options)

    async def stop(self) -> None:
        """End what is under way at its next chunk; a start goes on with it."""
        self._stopping = True
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _commit(self, transaction: str, parts: Mapping[str, int]) -> Appended:
        staging, added, rows = self._core.staging, 0, sum(parts.values())
        async with self._turn:
            if staging.is_closed(transaction):
                return Appended(0, await asyncio.to_thread(staging.missing, transaction))
            if not staging.is_here(transaction):
                # Nothing is made of it: if a disk is away that has them, its rows come to be there with it.
                return Appended(0, MissingRows(rows, "nothing of the write is here") if rows else None)
            self._check_running()
            async with self._beginning:
                plan = await asyncio.to_thread(staging.plan, transaction, parts)
                if plan.decided is None:
                    plan, keep = staging.begin(transaction, parts, rows, plan)
                    try:
                        await asyncio.to_thread(keep)
                    except StoreError:
                        staging.not_begun(transaction)
                        raise
            for count in staging.commit(transaction, parts, rows, plan):
                added += count
                await asyncio.sleep(0)
                self._check_running()
            # Whatever the store promises of appends: the staged data go when the log has them on disk.
            if self._durable is None:
                await asyncio.to_thread(self._core.store.flush)
            elif await self._durable() is not SendStatus.SEND_OK:
                raise WriteUnknown("the commit is not on disk yet: repeat it")
            await asyncio.to_thread(staging.mark_committed, transaction)
            staging.closed(transaction)
        await asyncio.to_thread(staging.empty, transaction)
        return Appended(added, await asyncio.to_thread(staging.missing, transaction))

    async def abort(self, transaction: str) -> None:
        """Forget the rows of a write that will not be committed; those of one that is are left alone."""
        staging = self._core.staging
        async with self._beginning:
            await asyncio.to_thread(staging.mark_dropped, transaction)
            staging.dropped(transaction)
        await asyncio.to_thread(self._core.staging.empty, transaction)

    async def sweep(self) -> None:
        """Give up what was abandoned, and forget what is long over; to be called every minute."""
        await self.decide(self._core.counted_time.save)
        await self.decide(self._core.writes.sweep)
        following, known = self._core.staging.following, self._core.homes.members
        for transaction in following.without_home(known, ABANDONED_SECONDS):
            if not self._core.staging.is_begun(transaction):
                _log.error(
                    "%s: rows of %s are dropped: the home of the write is no broker", self._core.name, transaction
                )
                await self.abort(transaction)
        remove = self._core.staging.sweep()
        if remove is not None:
            await asyncio.to_thread(remove)

    def _check_running(self) -> None:
        if self._stopping:
            raise BrokerUnavailable(self._core.name, "the broker is stopping")

    def _ended(self, transaction: str, task: asyncio.Task[Appended]) -> None:
        del self._running[transaction]
        if task.cancelled() or task.exception() is not None:
            self._core.staging.following.again(transaction)
