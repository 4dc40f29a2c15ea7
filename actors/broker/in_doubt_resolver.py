"""Resolve staged writes in doubt: ask their coordinators and carry out the decisions.

The driver of a write sends decisions, too. This task covers a crashed driver, and a broker that was unavailable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.writes.transaction_coordinator import TransactionStatus
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.actors.errors import BrokerUnavailable, RayMQError, StoreCorrupt, StoreError
from raymq.actors.request_limits import MAX_PARTS
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.commands import staged_write_commands as wire
from raymq.actors.wire.commands.staged_write_commands import PartsInstruction
from raymq.actors.wire.commands.target_broker import with_target_broker
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.storage.tables.write_transactions import WriteState

#: How long a coordinator may take to answer.
_COORDINATOR_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


def resolve_writes(core: BrokerCore, broker: str, idle: Mapping[str, float]) -> dict[str, PartsInstruction]:
    """Return, as coordinator, what `broker` has to do with its rows of these writes.

    One answer lists at most as many parts as one write may have: the writes beyond that get "wait" and are asked about
    again.
    """
    instructions: dict[str, PartsInstruction] = {}
    remaining = MAX_PARTS
    for transaction, seconds in idle.items():
        try:
            order = _order(core.writes.query_status(transaction, seconds), broker)
            instructions[transaction] = order if len(order.parts) <= remaining else PartsInstruction("wait", {})
            remaining -= len(instructions[transaction].parts)
        except StoreError as error:  # no disk space for the decision, or an administrator has to act
            _log.error("%s cannot answer about the write %s: %s", core.name, transaction, error)
            instructions[transaction] = PartsInstruction("wait", {})
    return instructions


def _order(fate: TransactionStatus, broker: str) -> PartsInstruction:
    record = fate.record
    if fate.decision is WriteState.OPEN:
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

    def __init__(
        self,
        core: BrokerCore,
        commits: StagedCommits,
        ask: Callable[[str, Command, float], Awaitable[Command]],
    ) -> None:
        """Create a resolver.

        `ask` sends a command to the broker of a name and returns its answer, within some seconds. It raises
        BrokerUnavailable if the broker cannot be reached.
        """
        self._core = core
        self._commits = commits
        self._ask = ask

    async def turn(self) -> None:
        """Ask about idle writes, carry out the decisions, and report finished writes."""
        in_doubt = self._core.staging.in_doubt
        queries = [self._follow(coordinator, idle) for coordinator, idle in in_doubt.due_queries().items()]
        notifications = [self._tell(coordinator, done) for coordinator, done in in_doubt.due_notifications().items()]
        if queries or notifications:
            failures = await asyncio.gather(*queries, *notifications, return_exceptions=True)
            for failure in failures:
                if isinstance(failure, BaseException):
                    raise failure

    async def _follow(self, coordinator: str, idle: Mapping[str, float]) -> None:
        in_doubt = self._core.staging.in_doubt
        # A write that this broker has begun to append is committed, even if its coordinator is unreachable or has
        # forgotten it.
        begun = {each: PartsInstruction("append", {}) for each in idle if self._core.staging.is_begun(each)}
        failure = await self._carry_out(begun)
        idle = {each: seconds for each, seconds in idle.items() if each not in begun}
        try:
            if coordinator == self._core.name:
                instructions = await self._commits.decide(resolve_writes, self._core, coordinator, idle)
            else:
                command = wire.ask_writes_command(self._core.name, idle)
                instructions = (
                    wire.read_instructions(await self._ask(coordinator, command, _COORDINATOR_SECONDS)) if idle else {}
                )
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

    async def _carry_out(self, instructions: Mapping[str, PartsInstruction]) -> Exception | None:
        """Carry out all instructions as far as possible, and return the first error or None."""
        failure: Exception | None = None
        for transaction, order in instructions.items():
            try:
                if order.what == "append":
                    await self._commits.commit(transaction, order.parts)
                elif order.what == "drop":
                    await self._commits.abort(transaction)
            except Exception as error:  # noqa: BLE001 - the other writes must still be carried out
                self._core.staging.in_doubt.retry_soon(transaction)
                failure = failure or error
        return failure

    async def _tell(self, coordinator: str, done: Sequence[str]) -> None:
        in_doubt = self._core.staging.in_doubt
        try:
            missing = await asyncio.to_thread(self._missing, done)
            if coordinator == self._core.name:
                for transaction in done:
                    missing_rows = missing.get(transaction)
                    await self._commits.decide(self._core.writes.mark_finished, transaction, coordinator, missing_rows)
            else:
                await self._ask(
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
        pairs = ((transaction, self._core.staging.missing(transaction)) for transaction in done)
        return {transaction: (missing.rows, missing.reason) for transaction, missing in pairs if missing is not None}
