"""Commit staged writes on one broker, one after the other.

A commit runs to its end even if its caller is gone. This module is used on the broker's event loop, which runs other
tasks between two chunks; waits for the disk happen on other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, ParamSpec, TypeVar

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.writes.transaction_coordinator import TRANSACTION_TIMEOUT_SECONDS
from raymq.actors.errors import BrokerUnavailable, StoreError, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.storage.tables.staged_records import MissingRows

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class CommitResult(NamedTuple):
    """The result of a commit.

    `added` is how many records this call appended. `missing` is how many rows cannot be appended and why; None if all
    are there.
    """

    added: int
    missing: MissingRows | None


class StagedCommits:
    """Appends committed rows, and marks them committed when they are on disk."""

    def __init__(self, core: BrokerCore, durable: Callable[[], Awaitable[SendStatus]] | None) -> None:
        """Create the commits of one broker; `durable` is as in `BrokerContext`."""
        self._core = core
        self._durable = durable
        self._turn = asyncio.Lock()
        #: The decision to commit or drop rows is recorded for one write at a time.
        self._beginning = asyncio.Lock()
        self._deciding = asyncio.Lock()
        self._running: dict[str, asyncio.Task[CommitResult]] = {}
        self._stopping = False

    async def commit(self, transaction: str, parts: Mapping[str, int]) -> CommitResult:
        """Append the chunks of these parts, with their row counts, that the log lacks.

        The commit continues if the caller is cancelled. May be repeated.

        Raises:
            StoreFull, StoreFailed, WriteUnknown: it is not finished and is retried later; no reader sees a part of it.
            BrokerUnavailable: the broker is stopping.
        """
        task = self._running.get(transaction)
        if task is None:
            task = asyncio.ensure_future(self._commit(transaction, parts))
            self._running[transaction] = task
            task.add_done_callback(lambda done: self._ended(transaction, done))
        return await asyncio.shield(task)

    async def decide(self, call: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        """Call a method of the core's `writes` on another thread, one call at a time.

        Return its result, or raise its error.
        """
        async with self._deciding:
            return await asyncio.to_thread(call, *arguments, **options)

    async def stop(self) -> None:
        """End running commits at their next chunk; the next start of the broker continues them."""
        self._stopping = True
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _commit(self, transaction: str, parts: Mapping[str, int]) -> CommitResult:
        staging, added, rows = self._core.staging, 0, sum(parts.values())
        async with self._turn:
            if not staging.is_here(transaction):
                # No decision is recorded: if a disk with the rows is only missing now, its rows come back with it.
                return CommitResult(0, MissingRows(rows, "no row of the write is on this broker") if rows else None)
            if not staging.is_committed(transaction):
                added = await self._append(transaction, parts, rows)
            await asyncio.to_thread(staging.mark_committed, transaction)
            staging.closed(transaction)
        return CommitResult(added, staging.missing(transaction))

    async def _append(self, transaction: str, parts: Mapping[str, int], rows: int) -> int:
        """Append and sync the chunks that the log lacks; return the record count."""
        staging, added = self._core.staging, 0
        self._check_running()
        async with self._beginning:
            plan = await asyncio.to_thread(staging.plan, transaction, parts)
            if plan.decided is None:
                plan, keep = staging.begin(transaction, parts, rows, plan)
                try:
                    await asyncio.to_thread(keep)
                except StoreError:
                    staging.rollback_begin(transaction)
                    raise
        for count in staging.commit(transaction, parts, rows, plan):
            added += count
            await asyncio.sleep(0)
            self._check_running()
        # Whatever the store promises for appends: the staged rows are forgotten only when the log has them on disk.
        if self._durable is None:
            await asyncio.to_thread(self._core.store.flush)
        elif await self._durable() is not SendStatus.SEND_OK:
            raise WriteUnknown("the commit is not on disk yet: repeat it")
        return added

    async def abort(self, transaction: str) -> None:
        """Drop the rows of an aborted write; leave those of a committed one."""
        staging = self._core.staging
        async with self._beginning:
            await asyncio.to_thread(staging.mark_aborted, transaction)
            staging.dropped(transaction)

    async def sweep(self) -> None:
        """Abort abandoned writes and forget old finished ones; call it every minute."""
        await self.decide(self._core.counted_time.save)
        await self.decide(self._core.writes.sweep)
        in_doubt, known = self._core.staging.in_doubt, self._core.coordinators.members
        for transaction in in_doubt.orphaned(known, TRANSACTION_TIMEOUT_SECONDS):
            if not self._core.staging.is_begun(transaction):
                _log.error(
                    "%s: rows of %s are dropped: the coordinator of the write is not a known broker",
                    self._core.name,
                    transaction,
                )
                await self.abort(transaction)
        self._core.staging.sweep()

    def _check_running(self) -> None:
        if self._stopping:
            raise BrokerUnavailable(self._core.name, "the broker is stopping")

    def _ended(self, transaction: str, task: asyncio.Task[CommitResult]) -> None:
        del self._running[transaction]
        if task.cancelled() or task.exception() is not None:
            self._core.staging.in_doubt.retry_soon(transaction)
