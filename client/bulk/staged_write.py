"""Open, commit and abort staged writes: the driver's side.

A write is opened at its coordinator ("home") and committed there by one decision; the brokers with its rows are then
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
from raymq.actors.wire.commands.staged_write_commands import TransactionAction, TransactionReply, check_count
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
            check_count(sum(map(len, by_broker.values())))
        except InvalidInput:
            with contextlib.suppress(RayMQError):
                self.abort(by_broker)
            raise
        self.mq.check_open()
        try:
            return self.mq.run(_commit(self.mq, self.transaction, self.coordinator, by_broker))
        except ClientClosed as error:  # the connection was closed meanwhile by another thread
            _remember_undecided(self.transaction, by_broker)
            raise _not_known(self.transaction, self.coordinator, error) from error

    def abort(self, brokers: Collection[str] = ()) -> None:
        """Abort the write.

        These brokers are informed, so that they delete its rows at once; all other brokers delete them on their own.

        Raises:
            InvalidInput: it is committed.
            BrokerUnavailable: its coordinator does not answer.
        """
        self.mq.run(_abort(self.mq, self.transaction, self.coordinator, brokers))


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
        coordinator = await _coordinator_of(mq, transaction)
        await _abort(mq, transaction, coordinator, ())

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
        coordinator, fate = await _decided(mq, transaction)
        lost, _ = await _carried_out(mq, transaction, fate)
        command = wire.accept_write_command(transaction, {broker: rows for broker, (rows, _) in lost.items()})
        await retry_while_unavailable(lambda: request_named_broker(mq, coordinator, command, _COORDINATOR_SECONDS))
        return await _finish(mq, transaction)

    return mq.run(do_without())


async def _open(
    mq: Connection, topic: str, brokers: Collection[str], series: str, number: int, stem: str
) -> StagedWrite | CommittedWrite:
    if series:
        coordinator = await ensure_coordinator(mq, SERIES, series, among=brokers)
        transaction = _new_name(coordinator, stem)
        fate = await retry_while_unavailable(lambda: _open_at(mq, coordinator, transaction, topic, series, number))
        if fate.instead:
            return await _standing(mq, coordinator, fate, number)
        return StagedWrite(mq, transaction, coordinator)

    async def anywhere() -> StagedWrite:
        problem: RayMQError = BrokerUnavailable(topic, "no broker of the topic can be written to")
        remaining = set(brokers)
        while remaining:
            coordinator = rendezvous_choice(uuid.uuid4().hex, remaining)
            remaining.discard(coordinator)
            transaction = _new_name(coordinator)  # a new name for each coordinator: one name is never opened at two
            try:
                await _open_at(mq, coordinator, transaction, topic, "", 0)
            except (BrokerUnavailable, ServerBusy, StoreError) as error:
                problem = error
            else:
                return StagedWrite(mq, transaction, coordinator)
        raise problem

    return await retry_while_unavailable(anywhere)


async def _open_at(
    mq: Connection, coordinator: str, transaction: str, topic: str, series: str, number: int
) -> TransactionReply:
    command = wire.open_write_command(transaction, topic, series, number)
    return wire.read_transaction_reply(await request_named_broker(mq, coordinator, command, _COORDINATOR_SECONDS))


def _new_name(coordinator: str, stem: str = "") -> str:
    """Return a new name, which includes the coordinator's name if that is short enough.

    `stem` replaces its random part.
    """
    stem = stem or uuid.uuid4().hex
    name = f"{stem}-{coordinator}"
    return name if _NAME.fullmatch(name) else stem


async def _decide(
    mq: Connection,
    transaction: str,
    coordinator: str,
    action: TransactionAction,
    parts: Mapping[str, Mapping[str, int]] | None = None,
) -> TransactionReply:
    """Return the coordinator's answer to an action on a write.

    Raise WriteUnknown if the coordinator refuses the action now but may have carried it out before, because an earlier
    answer was lost or this one is invalid.
    """
    unanswered = False

    async def ask() -> TransactionReply:
        nonlocal unanswered
        command = wire.decide_write_command(transaction, action, parts)
        try:
            return wire.read_transaction_reply(
                await request_named_broker(mq, coordinator, command, _COORDINATOR_SECONDS)
            )
        except (BrokerUnavailable, StoreError) as error:
            unanswered = unanswered or is_unanswered(error)
            raise
        except RayMQError as error:
            if unanswered or (isinstance(error, ProtocolError) and not isinstance(error, VersionMismatch)):
                raise WriteUnknown(f"{coordinator}: {error}") from error
            raise

    return await retry_while_unavailable(ask)


async def _commit(
    mq: Connection, transaction: str, coordinator: str, parts: Mapping[str, Mapping[str, int]]
) -> CommittedWrite:
    try:
        fate = await _decide(mq, transaction, coordinator, TransactionAction.COMMIT, parts)
    except RayMQError as error:
        if isinstance(error, StoreFull) or not isinstance(error, BrokerUnavailable | StoreError):  # nothing is decided
            with contextlib.suppress(RayMQError):
                await _abort(mq, transaction, coordinator, parts)
            raise
        _remember_undecided(transaction, parts)
        raise _not_known(transaction, coordinator, error) from error
    _undecided.pop(transaction, None)
    if fate.instead:
        return await _standing(mq, coordinator, fate, fate.instead_number)
    return await _settle(mq, transaction, fate)


def _remember_undecided(transaction: str, parts: Mapping[str, Mapping[str, int]]) -> None:
    while len(_undecided) >= _MAX_UNDECIDED:
        _undecided.pop(next(iter(_undecided)), None)
    _undecided[transaction] = parts


async def _standing(mq: Connection, coordinator: str, fate: TransactionReply, number: int) -> CommittedWrite:
    """Return the write that is committed in place of this one of its series.

    If it has the same number, wait until all of it is visible.
    """
    if fate.instead_number == number:
        standing = await _decide(mq, fate.instead, coordinator, TransactionAction.LOOK)
        if standing.decision == "committed":  # otherwise it is too old for the coordinator to have a record
            return await _settle(mq, fate.instead, standing)
    return CommittedWrite(fate.instead, fate.instead_rows)


async def _settle(mq: Connection, transaction: str, fate: TransactionReply) -> CommittedWrite:
    """Have the brokers carry out the decision, and wait for it."""
    if fate.instead:
        return CommittedWrite(fate.instead, fate.instead_rows)
    if fate.decision != "committed":
        raise NotStored(f"the write {transaction} was aborted in the meantime: none of its rows becomes visible")
    return _all_there(transaction, fate, *await _carried_out(mq, transaction, fate))


async def _carried_out(
    mq: Connection, transaction: str, fate: TransactionReply
) -> tuple[Mapping[str, tuple[int, str]], Mapping[str, RayMQError]]:
    """Have the brokers append the committed rows.

    Return the lost rows and the reason by broker, and the errors of the brokers that do not answer.
    """
    brokers = sorted(fate.parts)
    done = await gather(brokers, lambda broker: _append(mq, transaction, broker, fate.parts[broker]))
    away = {broker: result for broker, result in zip(brokers, done, strict=True) if isinstance(result, RayMQError)}
    lost = dict(fate.missing)
    lost |= {broker: result for broker, result in zip(brokers, done, strict=True) if isinstance(result, tuple)}
    return lost, away


def _all_there(
    transaction: str, fate: TransactionReply, lost: Mapping[str, tuple[int, str]], away: Mapping[str, RayMQError]
) -> CommittedWrite:
    """Return the result of a commit if all rows are stored, except accepted losses.

    Otherwise raise WriteIncomplete or OutcomeUnknown.
    """
    missing = sum(rows for rows, _ in lost.values())
    if any(rows > fate.accepted.get(broker, 0) for broker, (rows, _) in lost.items()):
        reasons = {broker: f"{rows} rows: {reason}" for broker, (rows, reason) in sorted(lost.items())}
        raise WriteIncomplete(transaction, fate.rows - missing, missing, reasons)
    if away:
        raise OutcomeUnknown(
            f"the write {transaction} is committed, but its rows on {', '.join(away)} become visible later, by"
            f" themselves: do not repeat the write, finish_write(transaction) waits until they are visible"
            f" ({min(map(str, away.values()))})",
            transaction=transaction,
            committed=True,
        )
    return CommittedWrite(transaction, fate.rows - missing)


async def _append(
    mq: Connection, transaction: str, broker: str, parts: Mapping[str, int]
) -> RayMQError | tuple[int, str] | None:
    """Have a broker append its rows, and wait as long as it is alive.

    Return None, the error if it has not appended them, or the number of lost rows and the reason.
    """
    deadline = time.monotonic() + RETRY_TIMEOUT_SECONDS
    backoff = Backoff(first=0.1, cap=1.0)
    while True:
        try:
            command = wire.commit_staged_command(transaction, parts)
            return wire.read_commit_answer(await request_named_broker(mq, broker, command, _APPEND_SECONDS))
        except BrokerUnavailable as error:
            if isinstance(error, Timeout) and await _is_alive(mq, broker, transaction):
                deadline = time.monotonic() + RETRY_TIMEOUT_SECONDS
                continue
            wait = backoff.next_delay()
            if time.monotonic() + wait >= deadline:
                return error
            await asyncio.sleep(wait)
        except RayMQError as error:  # its disk is full, or has failed: it retries on its own
            return error


async def _is_alive(mq: Connection, broker: str, transaction: str) -> bool:
    try:
        await request_named_broker(mq, broker, find_coordinator_command(WRITE, transaction), _ALIVE_SECONDS)
    except BrokerUnavailable:
        return False
    except RayMQError:
        pass
    return True


async def _abort(mq: Connection, transaction: str, coordinator: str, brokers: Iterable[str]) -> None:
    fate = await _decide(mq, transaction, coordinator, TransactionAction.ABORT)
    if fate.decision == "committed":
        allowed = "a write that is not committed; finish_write(transaction) waits until it is visible"
        raise InvalidInput("transaction", allowed, transaction)

    async def tell(broker: str) -> None:
        with contextlib.suppress(RayMQError):  # the broker will query the coordinator
            await request_named_broker(mq, broker, wire.abort_staged_command(transaction), _COORDINATOR_SECONDS)

    await gather(brokers, tell)


async def _finish(mq: Connection, transaction: str) -> CommittedWrite:
    coordinator, fate = await _decided(mq, transaction)
    if fate.decision == "open":
        return await _commit(mq, transaction, coordinator, _undecided[transaction])
    return await _settle(mq, transaction, fate)


async def _decided(mq: Connection, transaction: str) -> tuple[str, TransactionReply]:
    """Return a write's coordinator and its answer about the write.

    The decision can be "open" only if this process has requested the commit. Raise InvalidInput if it is not decided
    otherwise, or if the coordinator has no record of it.
    """
    coordinator = await _coordinator_of(mq, transaction)
    try:
        fate = await _decide(mq, transaction, coordinator, TransactionAction.LOOK)
    except (BrokerUnavailable, StoreError) as error:
        raise _not_known(transaction, coordinator, error) from error
    if fate.decision == "open" and transaction not in _undecided:
        allowed = "a decided write: only its own process can commit it; abort_write(transaction), and write again"
        raise InvalidInput("transaction", allowed, transaction)
    if fate.decision == "unknown":
        raise _unknown(transaction)
    return coordinator, fate


async def _coordinator_of(mq: Connection, transaction: str) -> str:
    """Return the coordinator of a write that was opened before.

    The brokers that had rows of it have a record of the coordinator for some minutes after its end; later only the
    write's name has it. Raise InvalidInput if neither has it.
    """
    coordinator = await find_coordinator(mq, WRITE, transaction)
    if isinstance(coordinator, str):
        return coordinator
    named = _NAMED.fullmatch(transaction)
    if named is not None and named[1] not in coordinator:
        return named[1]  # the coordinator is away
    raise _unknown(transaction)


def _unknown(transaction: str) -> RayMQError:
    return InvalidInput("transaction", "a write of the last 7 days that a broker has a record of", transaction)


def _not_known(transaction: str, coordinator: str, error: RayMQError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"it is unknown whether the write {transaction} is committed: {coordinator} does not answer; do not repeat it"
        f" before finish_write(transaction) has returned its outcome ({error})",
        transaction=transaction,
    )
