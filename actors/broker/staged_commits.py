"""Commit staged writes on one broker, and ask the coordinators of those in doubt.

Commits run one after the other, each to its end even if its caller is gone. The driver of a write sends its decision to
all brokers. A broker asks the coordinator if the driver has crashed, or if the broker was unavailable then. This module
is used on the broker's event loop, which runs other tasks between two chunks; waits for the disk happen on other
threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, ParamSpec, TypeVar

from raymq.actors.broker.acks import Acks
from raymq.actors.broker.core.appending.staged_commit import StagedCommit
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.writes.transaction_coordinator import TRANSACTION_TIMEOUT_SECONDS, TransactionStatus
from raymq.actors.errors import BrokerUnavailable, RayMQError, StoreCorrupt, StoreError, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.request_limits import MAX_PARTS
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.commands import staged_write_commands as wire
from raymq.actors.wire.commands.staged_write_commands import PartsInstruction
from raymq.actors.wire.commands.target_broker import with_target_broker
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.storage.tables.staged_chunk import MissingRows
from raymq.storage.tables.write_transactions import WriteState

#: How long a coordinator may take to answer.
_COORDINATOR_SECONDS: Final = 5.0

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

    def __init__(self, core: BrokerCore, acks: Acks) -> None:
        """Create the commits of one broker."""
        self._core = core
        self._acks = acks
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
            if not staging.table.is_here(transaction):
                # No decision is recorded: if a disk with the rows is only missing now, its rows come back with it.
                return CommitResult(0, MissingRows(rows, "no row of the write is on this broker") if rows else None)
            if not staging.table.is_committed(transaction):
                added = await self._append(staging.open_commit(transaction, parts, rows), transaction)
            await asyncio.to_thread(staging.table.close, transaction)
            staging.show(transaction)
        return CommitResult(added, staging.table.missing(transaction))

    async def _append(self, commit: StagedCommit, transaction: str) -> int:
        """Append and sync the chunks that the log lacks; return the record count."""
        added = 0
        self._check_running()
        async with self._beginning:
            await asyncio.to_thread(commit.load)
            if not commit.is_begun:
                try:
                    commit.block_readers()
                    await asyncio.to_thread(commit.record_decision)
                except StoreError:
                    self._core.staging.roll_back(transaction)
                    raise
        for count in commit.append():
            added += count
            await asyncio.sleep(0)
            self._check_running()
        # Whatever the store promises for appends: the staged rows are forgotten only when the log has them on disk.
        waiting = self._acks.durable()
        if waiting is None:
            await asyncio.to_thread(self._core.store.flush)
        elif await waiting is not SendStatus.SEND_OK:
            raise WriteUnknown("the commit is not on disk yet: repeat it")
        return added

    async def abort(self, transaction: str) -> None:
        """Drop the rows of an aborted write; leave those of a committed one."""
        staging = self._core.staging
        async with self._beginning:
            await asyncio.to_thread(staging.table.drop, transaction)
            staging.stop_tracking(transaction)

    async def sweep(self) -> None:
        """Abort abandoned writes and forget old finished ones; call it every minute."""
        await self.decide(self._core.counted_time.save)
        await self.decide(self._core.writes.sweep)
        in_doubt, known = self._core.staging.in_doubt, self._core.coordinators.members
        for transaction in in_doubt.orphaned(known, TRANSACTION_TIMEOUT_SECONDS):
            if self._core.staging.table.decided(transaction) is None:
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


def resolve_writes(core: BrokerCore, broker: str, idle: Mapping[str, float]) -> dict[str, PartsInstruction]:
    """Return, as coordinator, what `broker` has to do with its rows of these writes.

    One answer lists at most as many parts as one write may have: the writes beyond that get "wait" and are asked about
    again.
    """
    instructions: dict[str, PartsInstruction] = {}
    remaining = MAX_PARTS
    for transaction, seconds in idle.items():
        try:
            found = _instruction(core.writes.query_status(transaction, seconds), broker)
            instructions[transaction] = found if len(found.parts) <= remaining else PartsInstruction("wait", {})
            remaining -= len(instructions[transaction].parts)
        except StoreError as error:  # no disk space for the decision, or an administrator has to act
            _log.error("%s cannot answer about the write %s: %s", core.name, transaction, error)
            instructions[transaction] = PartsInstruction("wait", {})
    return instructions


def _instruction(status: TransactionStatus, broker: str) -> PartsInstruction:
    record = status.record
    if status.decision is WriteState.OPEN:
        return PartsInstruction("wait", {})
    if record is not None and record.decision is WriteState.COMMITTED and broker not in record.finished:
        parts = record.parts.get(broker, {})
        return PartsInstruction("append" if parts else "drop", parts)
    return PartsInstruction("drop", {})


class PeerClient:
    """Sends requests to other brokers by their names."""

    def __init__(self, routes: RouteCache, pool: ConnectionPool) -> None:
        self._routes = routes
        self._pool = pool

    async def ask(self, broker: str, command: Command, seconds: float) -> Command:
        """Send a command to a broker and return its answer.

        Raise BrokerUnavailable if the broker cannot be reached, else the error that it answers with.
        """
        address = (await self._routes.cluster()).masters.get(broker)
        if address is None:
            raise BrokerUnavailable(broker, "no name server lists it now")
        return await self._pool.request(address, with_target_broker(broker, command), seconds)


class InDoubtResolver:
    """Asks the coordinators of the writes with rows on this broker, and reports to them.

    It is used on the broker's event loop.
    """

    def __init__(self, core: BrokerCore, commits: StagedCommits, peers: PeerClient) -> None:
        self._core = core
        self._commits = commits
        self._peers = peers

    async def turn(self) -> None:
        """Ask about idle writes, carry out the decisions, and report finished writes."""
        in_doubt = self._core.staging.in_doubt
        queries = [self._resolve(coordinator, idle) for coordinator, idle in in_doubt.due_queries().items()]
        notifications = [self._report(coordinator, done) for coordinator, done in in_doubt.due_notifications().items()]
        if queries or notifications:
            failures = await asyncio.gather(*queries, *notifications, return_exceptions=True)
            for failure in failures:
                if isinstance(failure, BaseException):
                    raise failure

    async def _resolve(self, coordinator: str, idle: Mapping[str, float]) -> None:
        in_doubt = self._core.staging.in_doubt
        # A write that this broker has begun to append is committed, even if its coordinator is unreachable or has
        # forgotten it.
        decided = self._core.staging.table.decided
        begun = {each: PartsInstruction("append", {}) for each in idle if decided(each) is not None}
        failure = await self._carry_out(begun)
        idle = {each: seconds for each, seconds in idle.items() if each not in begun}
        try:
            instructions = await self._ask(coordinator, idle) if idle else {}
        except RayMQError as error:
            _log.info(
                "%s: %s, the coordinator of %d writes, does not answer: %s",
                self._core.name,
                coordinator,
                len(idle),
                error,
            )
            in_doubt.failed(coordinator)
            instructions = {}
        else:
            in_doubt.record_success(coordinator)
        failure = await self._carry_out(instructions) or failure
        if failure is not None:
            raise failure

    async def _ask(self, coordinator: str, idle: Mapping[str, float]) -> Mapping[str, PartsInstruction]:
        if coordinator == self._core.name:
            return await self._commits.decide(resolve_writes, self._core, coordinator, idle)
        command = wire.ask_writes_command(self._core.name, idle)
        return wire.read_instructions(await self._peers.ask(coordinator, command, _COORDINATOR_SECONDS))

    async def _carry_out(self, instructions: Mapping[str, PartsInstruction]) -> Exception | None:
        """Carry out all instructions as far as possible, and return the first error or None."""
        failure: Exception | None = None
        for transaction, instruction in instructions.items():
            try:
                if instruction.what == "append":
                    await self._commits.commit(transaction, instruction.parts)
                elif instruction.what == "drop":
                    await self._commits.abort(transaction)
            except Exception as error:  # noqa: BLE001 - the other writes must still be carried out
                self._core.staging.in_doubt.retry_soon(transaction)
                failure = failure or error
        return failure

    async def _report(self, coordinator: str, done: Sequence[str]) -> None:
        in_doubt = self._core.staging.in_doubt
        try:
            missing = await asyncio.to_thread(self._missing, done)
            if coordinator == self._core.name:
                for transaction in done:
                    missing_rows = missing.get(transaction)
                    await self._commits.decide(self._core.writes.mark_finished, transaction, coordinator, missing_rows)
            else:
                await self._peers.ask(
                    coordinator, wire.writes_done_command(self._core.name, done, missing), _COORDINATOR_SECONDS
                )
        except StoreCorrupt:  # the write can no longer be queried
            pass
        except RayMQError:
            in_doubt.failed(coordinator)
            return
        in_doubt.record_success(coordinator)
        for transaction in done:
            in_doubt.mark_notified(transaction)

    def _missing(self, done: Sequence[str]) -> dict[str, tuple[int, str]]:
        pairs = ((transaction, self._core.staging.table.missing(transaction)) for transaction in done)
        return {transaction: (missing.rows, missing.reason) for transaction, missing in pairs if missing is not None}
