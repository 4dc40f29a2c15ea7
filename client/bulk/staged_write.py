"""Open, commit and abort staged writes: the driver's side.

A write is opened at its coordinator and committed there by one decision; the brokers with its rows are then
informed. The coordinator's decision is the commit of the whole write: after it every broker makes its rows visible,
either on the driver's request or, without one, after a query to the coordinator. So whichever process crashes, either
all rows of a write become visible, or none.

The methods block; they may be called on any thread except the connection's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    BrokerUnavailable,
    ClientClosed,
    InvalidInput,
    NotStored,
    OutcomeUnknown,
    ProtocolError,
    RayMQError,
    ServerBusy,
    StoreError,
    StoreFull,
    Timeout,
    VersionMismatch,
    WriteIncomplete,
    WriteUnknown,
)
from raymq.actors.sending.send_plan import is_unanswered
from raymq.actors.wire.commands import staged_write_commands as wire
from raymq.actors.wire.commands.coordinator_directory_commands import SERIES, WRITE, find_coordinator_command
from raymq.actors.wire.commands.staged_write_commands import TransactionAction, TransactionReply
from raymq.actors.wire.frame import Command
from raymq.client.bulk.coordinator_lookup import (
    ensure_coordinator,
    find_coordinator,
    rendezvous_choice,
    request_named_broker,
)
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import RETRY_TIMEOUT_SECONDS, retry_while_unavailable
from raymq.client.requests.fan_out import gather

#: The time-out of a request to a coordinator, in seconds.
_COORDINATOR_SECONDS: Final = 10.0
#: The time-out for a broker to append its rows, after which its liveness is checked; a commit copies every staged byte.
_APPEND_SECONDS: Final = 60.0
_ALIVE_SECONDS: Final = 5.0
#: The valid names of a write.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAMED: Final = re.compile(r"[0-9a-f]{32}-([A-Za-z0-9_-]+)")
#: The number of writes with an unknown outcome whose parts are kept, for `finish`.
_MAX_UNDECIDED: Final = 100

#: The parts of the writes whose commit this process requested without an answer.
_undecided: Final[dict[str, Mapping[str, Mapping[str, int]]]] = {}


@dataclass(frozen=True, slots=True)
class CommittedWrite:
    """A write that is committed and visible: its name, and the number of its rows."""

    transaction: str
    rows: int


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """A write that was opened at its coordinator, which `coordinator` names.

    Any process may stage its rows from now on.
    """

    mq: Connection
    transaction: str
    coordinator: str

    @classmethod
    def open(
        cls, mq: Connection, topic: str, brokers: Collection[str], *, series: str = "", number: int = 0, stem: str = ""
    ) -> StagedWrite | CommittedWrite:
        """Open a write of `topic`.

        Args:
            brokers: the names of the brokers that may be its coordinator.
            series, number: the series of the write and its number in the series.
            stem: 32 hexadecimal digits that its name begins with. Processes that pass the same stem open the same write
                of a series.

        Returns:
            the write; or, if this or a later number of the series is committed, the result of that commit. If it is a
            later number, the rows are those of the later write.

        Raises:
            BrokerUnavailable: no coordinator answers.
            StoreFull, StoreFailed: no coordinator has room.
            InvalidInput: a name is invalid.
            WriteIncomplete, OutcomeUnknown: as `commit`, of this number of the series, which is committed.
        """
        return mq.run(_open(mq, topic, brokers, series, number, stem))

    def commit(self, parts: Iterable[tuple[str, str, int]]) -> CommittedWrite:
        """Commit these staged parts, and wait until all of them are visible.

        Args:
            parts: (part, broker, rows) of each.

        Raises:
            OutcomeUnknown: it is committed and not all of it is visible yet, or it is not known whether it is
                committed.
            NotStored: it was aborted meanwhile.
            StoreFull: its coordinator has no room; nothing is visible, nor will be.
            TooFewInSync: its coordinator has too few in-sync replicas; likewise.
            WriteIncomplete: it is committed, and some of its staged rows are lost.
            InvalidInput: these are more parts than a write may have; likewise nothing is visible.
        """
        by_broker: dict[str, dict[str, int]] = {}
        for part, broker, rows in parts:
            by_broker.setdefault(broker, {})[part] = rows
        try:
            wire.check_count(sum(map(len, by_broker.values())))
        except InvalidInput:
            with contextlib.suppress(RayMQError):
                self.abort(by_broker)
            raise
        self.mq.check_open()
        try:
            return self.mq.run(self.commit_parts(by_broker))
        except ClientClosed as error:  # the connection was closed meanwhile by another thread
            _remember_undecided(self.transaction, by_broker)
            raise self.unanswered(error) from error

    def abort(self, brokers: Collection[str] = ()) -> None:
        """Abort the write.

        These brokers are informed, so that they delete its rows at once; all other brokers delete them on their own.

        Raises:
            InvalidInput: it is committed.
            BrokerUnavailable: its coordinator does not answer.
        """
        self.mq.run(self.abort_at(brokers))

    # -- coroutines of the connection's loop ----------------------------------------------------------------------

    async def ask(self, command: Command) -> Command:
        """Return the coordinator's answer."""
        return await request_named_broker(self.mq, self.coordinator, command, _COORDINATOR_SECONDS)

    async def open_at_coordinator(self, topic: str, series: str = "", number: int = 0) -> TransactionReply:
        """Open the write, and return the coordinator's answer."""
        command = wire.open_write_command(self.transaction, topic, series, number)
        return wire.read_transaction_reply(await self.ask(command))

    async def decide(
        self, action: TransactionAction, parts: Mapping[str, Mapping[str, int]] | None = None
    ) -> TransactionReply:
        """Return the coordinator's answer to an action.

        Raise WriteUnknown if the coordinator refuses the action now but may have carried it out before, because an
        earlier answer was lost or this one is invalid.
        """
        unanswered = False

        async def attempt() -> TransactionReply:
            nonlocal unanswered
            try:
                command = wire.decide_write_command(self.transaction, action, parts)
                return wire.read_transaction_reply(await self.ask(command))
            except (BrokerUnavailable, StoreError) as error:
                unanswered = unanswered or is_unanswered(error)
                raise
            except RayMQError as error:
                if unanswered or (isinstance(error, ProtocolError) and not isinstance(error, VersionMismatch)):
                    raise WriteUnknown(f"{self.coordinator}: {error}") from error
                raise

        return await retry_while_unavailable(attempt)

    async def commit_parts(self, parts: Mapping[str, Mapping[str, int]]) -> CommittedWrite:
        """Commit these parts, by broker; see `commit`."""
        try:
            status = await self.decide(TransactionAction.COMMIT, parts)
        except RayMQError as error:
            if isinstance(error, StoreFull) or not isinstance(error, BrokerUnavailable | StoreError):
                with contextlib.suppress(RayMQError):  # nothing is decided
                    await self.abort_at(parts)
                raise
            _remember_undecided(self.transaction, parts)
            raise self.unanswered(error) from error
        _undecided.pop(self.transaction, None)
        if status.instead:
            return await self.committed_instead(status, status.instead_number)
        return await self.settle(status)

    async def abort_at(self, brokers: Iterable[str]) -> None:
        """Abort the write, and inform these brokers; see `abort`."""
        status = await self.decide(TransactionAction.ABORT)
        if status.decision == "committed":
            allowed = "a write that is not committed; finish_write(transaction) waits until it is visible"
            raise InvalidInput("transaction", allowed, self.transaction)

        async def drop(broker: str) -> None:
            with contextlib.suppress(RayMQError):  # the broker will query the coordinator
                command = wire.abort_staged_command(self.transaction)
                await request_named_broker(self.mq, broker, command, _COORDINATOR_SECONDS)

        await gather(brokers, drop)

    async def committed_instead(self, status: TransactionReply, number: int) -> CommittedWrite:
        """Return the write that is committed in place of this one of its series.

        If it has the same number, wait until all of it is visible.
        """
        if status.instead_number == number:
            other = StagedWrite(self.mq, status.instead, self.coordinator)
            found = await other.decide(TransactionAction.LOOK)
            if found.decision == "committed":  # otherwise it is too old for the coordinator to have a record
                return await other.settle(found)
        return CommittedWrite(status.instead, status.instead_rows)

    async def settle(self, status: TransactionReply) -> CommittedWrite:
        """Have the brokers carry out the decision, and wait for it."""
        if status.instead:
            return CommittedWrite(status.instead, status.instead_rows)
        if status.decision != "committed":
            raise NotStored(
                f"the write {self.transaction} was aborted in the meantime: none of its rows becomes visible"
            )
        lost, away = await self.append_all(status)
        missing = sum(rows for rows, _ in lost.values())
        if any(rows > status.accepted.get(broker, 0) for broker, (rows, _) in lost.items()):
            reasons = {broker: f"{rows} rows: {reason}" for broker, (rows, reason) in sorted(lost.items())}
            raise WriteIncomplete(self.transaction, status.rows - missing, missing, reasons)
        if away:
            raise OutcomeUnknown(
                f"the write {self.transaction} is committed, but its rows on {', '.join(away)} become visible later, by"
                f" themselves: do not repeat the write, finish_write(transaction) waits until they are visible"
                f" ({min(map(str, away.values()))})",
                transaction=self.transaction,
                committed=True,
            )
        return CommittedWrite(self.transaction, status.rows - missing)

    async def append_all(
        self, status: TransactionReply
    ) -> tuple[Mapping[str, tuple[int, str]], Mapping[str, RayMQError]]:
        """Have the brokers append the committed rows.

        Return the lost rows and the reason by broker, and the errors of the brokers that do not answer.
        """
        brokers = sorted(status.parts)
        done = await gather(brokers, lambda broker: self._append(broker, status.parts[broker]))
        away = {broker: result for broker, result in zip(brokers, done, strict=True) if isinstance(result, RayMQError)}
        lost = dict(status.missing)
        lost |= {broker: result for broker, result in zip(brokers, done, strict=True) if isinstance(result, tuple)}
        return lost, away

    async def _append(self, broker: str, parts: Mapping[str, int]) -> RayMQError | tuple[int, str] | None:
        """Have a broker append its rows, and wait as long as it is alive.

        Return None, the error if it has not appended them, or the number of lost rows and the reason.
        """
        deadline = time.monotonic() + RETRY_TIMEOUT_SECONDS
        backoff = Backoff(first=0.1, cap=1.0)
        while True:
            try:
                command = wire.commit_staged_command(self.transaction, parts)
                return wire.read_commit_answer(await request_named_broker(self.mq, broker, command, _APPEND_SECONDS))
            except BrokerUnavailable as error:
                if isinstance(error, Timeout) and await self._is_alive(broker):
                    deadline = time.monotonic() + RETRY_TIMEOUT_SECONDS
                    continue
                wait = backoff.next_delay()
                if time.monotonic() + wait >= deadline:
                    return error
                await asyncio.sleep(wait)
            except RayMQError as error:  # its disk is full, or has failed: it retries on its own
                return error

    async def _is_alive(self, broker: str) -> bool:
        try:
            command = find_coordinator_command(WRITE, self.transaction)
            await request_named_broker(self.mq, broker, command, _ALIVE_SECONDS)
        except BrokerUnavailable:
            return False
        except RayMQError:
            pass
        return True

    async def finish(self, status: TransactionReply) -> CommittedWrite:
        """Finish a requested commit, and wait until all of the write is visible."""
        if status.decision == "open":
            return await self.commit_parts(_undecided[self.transaction])
        return await self.settle(status)

    def unanswered(self, error: RayMQError) -> OutcomeUnknown:
        """Return the error of a write whose coordinator does not answer."""
        return OutcomeUnknown(
            f"it is unknown whether the write {self.transaction} is committed: {self.coordinator} does not answer; do"
            f" not repeat it before finish_write(transaction) has returned its outcome ({error})",
            transaction=self.transaction,
        )


def finish(mq: Connection, transaction: str) -> CommittedWrite:
    """Wait until a write of any process is visible, and return its outcome.

    If this process requested its commit without an answer, and nothing is decided yet, it is committed now.

    Raises:
        NotStored: it was aborted: nothing of it is visible, nor will be.
        InvalidInput: nothing is decided about it, since another process still writes it or its driver crashed; or no
            broker has a record of it.
        OutcomeUnknown, WriteIncomplete: as `StagedWrite.commit`.
    """
    return mq.run(_finish(mq, transaction))


def abort(mq: Connection, transaction: str) -> None:
    """Abort a write of any process.

    Raises:
        InvalidInput: it is committed, or no broker has a record of it.
        BrokerUnavailable: its coordinator does not answer.
    """

    async def end() -> None:
        await (await _write_of(mq, transaction)).abort_at(())

    mq.run(end())


def accept(mq: Connection, transaction: str) -> CommittedWrite:
    """Accept the loss of rows of a committed write, which then counts as complete.

    This holds for all later callers.

    Returns:
        the write with the number of its rows that are stored.

    Raises:
        WriteIncomplete: more rows were lost meanwhile.
        OutcomeUnknown: a broker is away, so that it is not known whether its rows are lost.
        NotStored, InvalidInput: as `finish`.
    """

    async def do_without() -> CommittedWrite:
        with contextlib.suppress(WriteIncomplete):
            return await _finish(mq, transaction)
        write, status = await _decided(mq, transaction)
        lost, _ = await write.append_all(status)
        command = wire.accept_write_command(transaction, {broker: rows for broker, (rows, _) in lost.items()})
        await retry_while_unavailable(lambda: write.ask(command))
        return await _finish(mq, transaction)

    return mq.run(do_without())


async def _open(
    mq: Connection, topic: str, brokers: Collection[str], series: str, number: int, stem: str
) -> StagedWrite | CommittedWrite:
    if series:
        write = _new_write(mq, await ensure_coordinator(mq, SERIES, series, among=brokers), stem)
        status = await retry_while_unavailable(lambda: write.open_at_coordinator(topic, series, number))
        return await write.committed_instead(status, number) if status.instead else write

    async def anywhere() -> StagedWrite:
        problem: RayMQError = BrokerUnavailable(topic, "no broker of the topic can be written to")
        remaining = set(brokers)
        while remaining:
            coordinator = rendezvous_choice(uuid.uuid4().hex, remaining)
            remaining.discard(coordinator)
            write = _new_write(mq, coordinator)  # a new name for each coordinator: one name is never opened at two
            try:
                await write.open_at_coordinator(topic)
            except (BrokerUnavailable, ServerBusy, StoreError) as error:
                problem = error
            else:
                return write
        raise problem

    return await retry_while_unavailable(anywhere)


def _new_write(mq: Connection, coordinator: str, stem: str = "") -> StagedWrite:
    """Return a write with a new name, with the coordinator's name if short.

    `stem` replaces its random part.
    """
    stem = stem or uuid.uuid4().hex
    name = f"{stem}-{coordinator}"
    return StagedWrite(mq, name if _NAME.fullmatch(name) else stem, coordinator)


def _remember_undecided(transaction: str, parts: Mapping[str, Mapping[str, int]]) -> None:
    while len(_undecided) >= _MAX_UNDECIDED:
        _undecided.pop(next(iter(_undecided)), None)
    _undecided[transaction] = parts


async def _finish(mq: Connection, transaction: str) -> CommittedWrite:
    write, status = await _decided(mq, transaction)
    return await write.finish(status)


async def _decided(mq: Connection, transaction: str) -> tuple[StagedWrite, TransactionReply]:
    """Return a write of any process, and the coordinator's answer about it.

    The decision can be "open" only if this process has requested the commit. Raise InvalidInput if it is not decided
    otherwise, or if the coordinator has no record of it.
    """
    write = await _write_of(mq, transaction)
    try:
        status = await write.decide(TransactionAction.LOOK)
    except (BrokerUnavailable, StoreError) as error:
        raise write.unanswered(error) from error
    if status.decision == "open" and transaction not in _undecided:
        allowed = "a decided write: only its own process can commit it; abort_write(transaction), and write again"
        raise InvalidInput("transaction", allowed, transaction)
    if status.decision == "unknown":
        raise _unknown(transaction)
    return write, status


async def _write_of(mq: Connection, transaction: str) -> StagedWrite:
    """Return a write that was opened before.

    The brokers that had rows of it have a record of the coordinator for some minutes after its end; later only the
    write's name has it. Raise InvalidInput if neither has it.
    """
    coordinator = await find_coordinator(mq, WRITE, transaction)
    if isinstance(coordinator, str):
        return StagedWrite(mq, transaction, coordinator)
    named = _NAMED.fullmatch(transaction)
    if named is not None and named[1] not in coordinator:
        return StagedWrite(mq, transaction, named[1])  # the coordinator is away
    raise _unknown(transaction)


def _unknown(transaction: str) -> RayMQError:
    return InvalidInput("transaction", "a write of the last 7 days that a broker has a record of", transaction)
