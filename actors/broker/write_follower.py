"""The duty of brokers that have rows of staged writes: they ask the homes what has become of these, and do it.

The driver of a write tells them, too; this is for where it died, or where a broker was away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.writes.deciding import Fate
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.actors.errors import BrokerUnavailable, RayMQError, StoreCorrupt, StoreError
from raymq.actors.request_limits import MAX_PARTS
from raymq.actors.routing import Routes
from raymq.actors.wire.commands import staging as wire
from raymq.actors.wire.commands.meant import meant_for
from raymq.actors.wire.commands.staging import Order
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.storage.tables.write_records import WriteDecision

#: What a home may take for an answer.
_HOME_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


def orders(core: BrokerCore, broker: str, idle: Mapping[str, float]) -> dict[str, Order]:
    """What this broker, the home, has `broker` do with its rows of these writes.

    One answer names no more parts than a write may have: what is beyond them has to wait, and is asked about again.
    """
    told: dict[str, Order] = {}
    left = MAX_PARTS
    for transaction, seconds in idle.items():
        try:
            order = _order(core.writes.ask(transaction, seconds), broker)
            told[transaction] = order if len(order.parts) <= left else Order("wait", {})
            left -= len(told[transaction].parts)
        except StoreError as error:  # no room for what it would decide, or an administrator has to look at it
            _log.error("%s cannot be asked about the write %s: %s", core.name, transaction, error)
            told[transaction] = Order("wait", {})
    return told


def _order(fate: Fate, broker: str) -> Order:
    record = fate.record
    if fate.decision is WriteDecision.OPEN:
        return Order("wait", {})
    if record is not None and record.decision is WriteDecision.COMMITTED and broker not in record.finished:
        parts = record.parts.get(broker, {})
        return Order("append" if parts else "drop", parts)
    return Order("drop", {})


class BrokersByName:
    """The way to other brokers, by their names."""

    def __init__(self, routes: Routes, pool: ConnectionPool) -> None:
        self._routes = routes
        self._pool = pool

    async def ask(self, broker: str, command: Command, seconds: float) -> Command:
        """The answer of a broker; BrokerUnavailable if it is away. Else what it refuses with."""
        address = (await self._routes.cluster()).masters.get(broker)
        if address is None:
            raise BrokerUnavailable(broker, "no name server knows it now")
        return await self._pool.request(address, meant_for(broker, command), seconds)


class WriteFollower:
    """Asks and tells the homes of the writes that this broker has rows of. Used on the broker's event loop."""

    def __init__(
        self,
        core: BrokerCore,
        commits: StagedCommits,
        ask: Callable[[str, Command, float], Awaitable[Command]],
    ) -> None:
        """`ask` gives the answer of the broker of a name, within some seconds; BrokerUnavailable."""
        self._core = core
        self._commits = commits
        self._ask = ask

    async def turn(self) -> None:
        """Ask about what nobody has touched lately, do what is to be done, tell what is done."""
        following = self._core.staging.following
        asked = [self._follow(home, idle) for home, idle in following.to_ask().items()]
        told = [self._tell(home, done) for home, done in following.to_tell().items()]
        if asked or told:
            failures = await asyncio.gather(*asked, *told, return_exceptions=True)
            for failure in failures:
                if isinstance(failure, BaseException):
                    raise failure

    async def _follow(self, home: str, idle: Mapping[str, float]) -> None:
        following = self._core.staging.following
        # What this broker has begun to append is committed, whether or not its home is there, or knows it still.
        begun = {each: Order("append", {}) for each in idle if self._core.staging.is_begun(each)}
        failure = await self._carry_out(begun)
        idle = {each: seconds for each, seconds in idle.items() if each not in begun}
        try:
            if home == self._core.name:
                told = await self._commits.decide(orders, self._core, home, idle)
            else:
                command = wire.ask_writes_command(self._core.name, idle)
                told = wire.read_orders(await self._ask(home, command, _HOME_SECONDS)) if idle else {}
        except RayMQError as error:
            _log.info("%s: %s, the home of %d writes, does not answer: %s", self._core.name, home, len(idle), error)
            following.failed(home)
            told = {}
        else:
            following.answered(home)
        failure = await self._carry_out(told) or failure
        if failure is not None:
            raise failure

    async def _carry_out(self, told: Mapping[str, Order]) -> Exception | None:
        """Do all of it, as far as possible; what was in the way of some."""
        failure: Exception | None = None
        for transaction, order in told.items():
            try:
                if order.what == "append":
                    await self._commits.commit(transaction, order.parts)
                elif order.what == "drop":
                    await self._commits.abort(transaction)
            except Exception as error:  # noqa: BLE001 - the others have their turn in any case
                self._core.staging.following.again(transaction)
                failure = failure or error
        return failure

    async def _tell(self, home: str, done: Sequence[str]) -> None:
        following = self._core.staging.following
        try:
            missing = await asyncio.to_thread(self._missing, done)
            if home == self._core.name:
                for transaction in done:
                    told = missing.get(transaction)
                    await self._commits.decide(self._core.writes.finished, transaction, home, told)
            else:
                await self._ask(home, wire.writes_done_command(self._core.name, done, missing), _HOME_SECONDS)
        except StoreCorrupt:  # nobody will ask
            pass
        except RayMQError:
            following.failed(home)
            return
        following.answered(home)
        for transaction in done:
            following.told(transaction)

    def _missing(self, done: Sequence[str]) -> dict[str, tuple[int, str]]:
        told = ((transaction, self._core.staging.missing(transaction)) for transaction in done)
        return {transaction: (missing.rows, missing.reason) for transaction, missing in told if missing is not None}
