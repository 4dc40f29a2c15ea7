"""The driver's side of staged writes: opened at a home, committed there by one decision, then told to who has the rows.

The home's decision is the commit of the whole write: from then on every broker makes its rows visible, when it is told
or, where nobody tells it, by asking the home. So whatever dies, all of a write comes to be there, or nothing of it.

The methods block; any thread but the connection's own.
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
from raymq.actors.wire.commands import staging as wire
from raymq.actors.wire.commands.homes import SERIES, WRITE, find_home_command
from raymq.actors.wire.commands.staged_parts import check_count
from raymq.actors.wire.commands.staging import WriteFate, WriteWish
from raymq.client.bulk.home import ask_home, chosen, find_home, home_of
from raymq.client.connection import Connection
from raymq.client.requests.asking import PATIENCE_SECONDS, patiently
from raymq.client.requests.fan_out import gather

#: What a home may take for an answer.
_HOME_SECONDS: Final = 10.0
#: What a broker may take to append its rows before it is asked whether it lives; a commit copies every staged byte.
_APPEND_SECONDS: Final = 60.0
_ALIVE_SECONDS: Final = 5.0
#: What a write may be called.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAMED: Final = re.compile(r"[0-9a-f]{32}-([A-Za-z0-9_-]+)")
#: Of so many writes whose fate is not known the parts are kept, for `finish`.
_MOST_UNDECIDED: Final = 100

#: The parts that this process wanted to commit, where it does not know whether they are.
_undecided: Final[dict[str, Mapping[str, Mapping[str, int]]]] = {}


@dataclass(frozen=True, slots=True)
class Written:
    """A write that is committed, and visible: its name, and how many rows it has."""

    transaction: str
    rows: int


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """A write that was opened at its home. Its rows may be staged from now on, by any process."""

    mq: Connection
    transaction: str
    home: str

    @classmethod
    def open(
        cls, mq: Connection, topic: str, brokers: Collection[str], *, series: str = "", number: int = 0, stem: str = ""
    ) -> StagedWrite | Written:
        """Open a write of `topic`.

        Args:
            brokers: the names of those that may be its home.
            series, number: which write of which series it is.
            stem: 32 hexadecimal digits that its name begins with. Processes that give the same one open the same write
                of a series.

        Returns:
            the write; or, where this or a later number of the series is committed, what was written then. The rows are
            those of that later one where it is one.

        Raises:
            BrokerUnavailable: no home answers. StoreFull, StoreFailed: none has room. InvalidInput: a name cannot be.
            WriteIncomplete, OutcomeUnknown: as `commit`, of this number of the series, which is committed.
        """
        return mq.run(_open(mq, topic, brokers, series, number, stem))

    def commit(self, parts: Iterable[tuple[str, str, int]]) -> Written:
        """Commit what was staged as these parts (part, broker, rows), and wait until all of it is visible.

        Raises:
            OutcomeUnknown: it is committed and not all of it is visible yet, or it is not known whether it is.
            NotStored: it was aborted meanwhile. StoreFull: its home has no room; nothing is visible, nor will be.
            TooFewInSync: its home has too few replicas; likewise.
            WriteIncomplete: it is committed, and some of what was staged is not there any more.
            InvalidInput: these are more parts than a write may have; likewise.
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
            return self.mq.run(_commit(self.mq, self.transaction, self.home, by_broker))
        except ClientClosed as error:  # meanwhile, by another thread
            _remember_undecided(self.transaction, by_broker)
            raise _not_known(self.transaction, self.home, error) from error

    def abort(self, brokers: Collection[str] = ()) -> None:
        """Give it up. These brokers are told to forget its rows at once; all others do so by themselves.

        Raises:
            InvalidInput: it is committed. BrokerUnavailable: its home does not answer.
        """
        self.mq.run(_abort(self.mq, self.transaction, self.home, brokers))


def finish(mq: Connection, transaction: str) -> Written:
    """What has become of a write, wherever it was made; waits until all of it is visible.

    One whose commit this process has asked for without an answer is committed now if it is not decided yet.

    Raises:
        NotStored: it was aborted: nothing of it is visible, nor will be.
        InvalidInput: nothing is decided about it: it goes on elsewhere, or its driver died; or no broker knows it.
        OutcomeUnknown, WriteIncomplete: as `StagedWrite.commit`.
    """
    return mq.run(_finish(mq, transaction))


def abort(mq: Connection, transaction: str) -> None:
    """Give up a write, wherever it was made.

    Raises:
        InvalidInput: it is committed, or no broker knows it. BrokerUnavailable: its home does not answer.
    """

    async def end() -> None:
        home = await _home_of(mq, transaction)
        await _abort(mq, transaction, home, ())

    mq.run(end())


def accept(mq: Connection, transaction: str) -> Written:
    """Do without the rows of a committed write that are lost: it counts as whole from now on, for whoever asks.

    Returns:
        how many rows are there.

    Raises:
        WriteIncomplete: more rows were lost meanwhile. OutcomeUnknown: a broker is away, so that nobody knows
            whether its rows are lost.
        NotStored, InvalidInput: as `finish`.
    """

    async def do_without() -> Written:
        with contextlib.suppress(WriteIncomplete):
            return await _finish(mq, transaction)
        home, fate = await _decided(mq, transaction)
        lost, _ = await _carried_out(mq, transaction, fate)
        command = wire.accept_write_command(transaction, {broker: rows for broker, (rows, _) in lost.items()})
        await patiently(lambda: ask_home(mq, home, command, _HOME_SECONDS))
        return await _finish(mq, transaction)

    return mq.run(do_without())


async def _open(
    mq: Connection, topic: str, brokers: Collection[str], series: str, number: int, stem: str
) -> StagedWrite | Written:
    if series:
        home = await home_of(mq, SERIES, series, among=brokers)
        transaction = _new_name(home, stem)
        fate = await patiently(lambda: _open_at(mq, home, transaction, topic, series, number))
        if fate.instead:
            return await _standing(mq, home, fate, number)
        return StagedWrite(mq, transaction, home)

    async def anywhere() -> StagedWrite:
        problem: RayMQError = BrokerUnavailable(topic, "no broker may be written to")
        left = set(brokers)
        while left:
            home = chosen(uuid.uuid4().hex, left)
            left.discard(home)
            transaction = _new_name(home)  # one name is never opened at two homes
            try:
                await _open_at(mq, home, transaction, topic, "", 0)
            except (BrokerUnavailable, ServerBusy, StoreError) as error:
                problem = error
            else:
                return StagedWrite(mq, transaction, home)
        raise problem

    return await patiently(anywhere)


async def _open_at(mq: Connection, home: str, transaction: str, topic: str, series: str, number: int) -> WriteFate:
    command = wire.open_write_command(transaction, topic, series, number)
    return wire.read_fate(await ask_home(mq, home, command, _HOME_SECONDS))


def _new_name(home: str, stem: str = "") -> str:
    """A name that nothing was called before, and that says who the home is, if that is no long name."""
    stem = stem or uuid.uuid4().hex
    name = f"{stem}-{home}"
    return name if _NAME.fullmatch(name) else stem


async def _decide(
    mq: Connection, transaction: str, home: str, wish: WriteWish, parts: Mapping[str, Mapping[str, int]] | None = None
) -> WriteFate:
    """What the home says to a wish. WriteUnknown: it may have carried it out, by an answer that was lost or makes no
    sense, and refuses now.
    """
    unanswered = False

    async def ask() -> WriteFate:
        nonlocal unanswered
        command = wire.decide_write_command(transaction, wish, parts)
        try:
            return wire.read_fate(await ask_home(mq, home, command, _HOME_SECONDS))
        except (BrokerUnavailable, StoreError) as error:
            unanswered = unanswered or is_unanswered(error)
            raise
        except RayMQError as error:
            if unanswered or (isinstance(error, ProtocolError) and not isinstance(error, VersionMismatch)):
                raise WriteUnknown(f"{home}: {error}") from error
            raise

    return await patiently(ask)


async def _commit(mq: Connection, transaction: str, home: str, parts: Mapping[str, Mapping[str, int]]) -> Written:
    try:
        fate = await _decide(mq, transaction, home, WriteWish.COMMIT, parts)
    except RayMQError as error:
        if isinstance(error, StoreFull) or not isinstance(error, BrokerUnavailable | StoreError):  # nothing is decided
            with contextlib.suppress(RayMQError):
                await _abort(mq, transaction, home, parts)
            raise
        _remember_undecided(transaction, parts)
        raise _not_known(transaction, home, error) from error
    _undecided.pop(transaction, None)
    if fate.instead:
        return await _standing(mq, home, fate, fate.instead_number)
    return await _settle(mq, transaction, fate)


def _remember_undecided(transaction: str, parts: Mapping[str, Mapping[str, int]]) -> None:
    while len(_undecided) >= _MOST_UNDECIDED:
        _undecided.pop(next(iter(_undecided)), None)
    _undecided[transaction] = parts


async def _standing(mq: Connection, home: str, fate: WriteFate, number: int) -> Written:
    """The write that stands for this one of its series; if it has its number, all of it has to be there."""
    if fate.instead_number == number:
        standing = await _decide(mq, fate.instead, home, WriteWish.LOOK)
        if standing.decision == "committed":  # else that was long ago
            return await _settle(mq, fate.instead, standing)
    return Written(fate.instead, fate.instead_rows)


async def _settle(mq: Connection, transaction: str, fate: WriteFate) -> Written:
    """Have everybody do what is decided, and wait for it."""
    if fate.instead:
        return Written(fate.instead, fate.instead_rows)
    if fate.decision != "committed":
        raise NotStored(f"the write {transaction} was aborted meanwhile: nothing of it is visible, nor will be")
    return _all_there(transaction, fate, *await _carried_out(mq, transaction, fate))


async def _carried_out(
    mq: Connection, transaction: str, fate: WriteFate
) -> tuple[Mapping[str, tuple[int, str]], Mapping[str, RayMQError]]:
    """Have the brokers append what is committed; who has lost how many rows, and why; and who does not answer."""
    brokers = sorted(fate.parts)
    done = await gather(brokers, lambda broker: _append(mq, transaction, broker, fate.parts[broker]))
    away = {broker: told for broker, told in zip(brokers, done, strict=True) if isinstance(told, RayMQError)}
    lost = dict(fate.missing)
    lost |= {broker: told for broker, told in zip(brokers, done, strict=True) if isinstance(told, tuple)}
    return lost, away


def _all_there(
    transaction: str, fate: WriteFate, lost: Mapping[str, tuple[int, str]], away: Mapping[str, RayMQError]
) -> Written:
    """What was written, if all is there but for rows that the writer does without; else the error that says so."""
    missing = sum(rows for rows, _ in lost.values())
    if any(rows > fate.accepted.get(broker, 0) for broker, (rows, _) in lost.items()):
        reasons = {broker: f"{rows} rows: {reason}" for broker, (rows, reason) in sorted(lost.items())}
        raise WriteIncomplete(transaction, fate.rows - missing, missing, reasons)
    if away:
        raise OutcomeUnknown(
            f"the write {transaction} is committed, and its rows on {', '.join(away)} become visible by themselves when"
            f" that is possible: do not repeat it, finish_write(transaction) waits for it"
            f" ({min(map(str, away.values()))})",
            transaction=transaction,
            committed=True,
        )
    return Written(transaction, fate.rows - missing)


async def _append(
    mq: Connection, transaction: str, broker: str, parts: Mapping[str, int]
) -> RayMQError | tuple[int, str] | None:
    """Have a broker append its rows, for as long as it lives; why it has not, or how many are not there, and why."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    backoff = Backoff(first=0.1, cap=1.0)
    while True:
        try:
            command = wire.commit_staged_command(transaction, parts)
            return wire.read_appended(await ask_home(mq, broker, command, _APPEND_SECONDS))
        except BrokerUnavailable as error:
            if isinstance(error, Timeout) and await _lives(mq, broker, transaction):
                deadline = time.monotonic() + PATIENCE_SECONDS
                continue
            wait = backoff.next_delay()
            if time.monotonic() + wait >= deadline:
                return error
            await asyncio.sleep(wait)
        except RayMQError as error:  # its disk is full, or has failed: it goes on when it can
            return error


async def _lives(mq: Connection, broker: str, transaction: str) -> bool:
    try:
        await ask_home(mq, broker, find_home_command(WRITE, transaction), _ALIVE_SECONDS)
    except BrokerUnavailable:
        return False
    except RayMQError:
        pass
    return True


async def _abort(mq: Connection, transaction: str, home: str, brokers: Iterable[str]) -> None:
    fate = await _decide(mq, transaction, home, WriteWish.ABORT)
    if fate.decision == "committed":
        allowed = "a write that is not committed; finish_write(transaction) waits until it is visible"
        raise InvalidInput("transaction", allowed, transaction)

    async def tell(broker: str) -> None:
        with contextlib.suppress(RayMQError):  # it asks the home
            await ask_home(mq, broker, wire.abort_staged_command(transaction), _HOME_SECONDS)

    await gather(brokers, tell)


async def _finish(mq: Connection, transaction: str) -> Written:
    home, fate = await _decided(mq, transaction)
    if fate.decision == "open":
        return await _commit(mq, transaction, home, _undecided[transaction])
    return await _settle(mq, transaction, fate)


async def _decided(mq: Connection, transaction: str) -> tuple[str, WriteFate]:
    """Where a write has its home, and what that says of it; it is open only if this process has wanted its commit."""
    home = await _home_of(mq, transaction)
    try:
        fate = await _decide(mq, transaction, home, WriteWish.LOOK)
    except (BrokerUnavailable, StoreError) as error:
        raise _not_known(transaction, home, error) from error
    if fate.decision == "open" and transaction not in _undecided:
        allowed = (
            "a write that is decided: only its own process can commit it; abort_write(transaction), and write again"
        )
        raise InvalidInput("transaction", allowed, transaction)
    if fate.decision == "unknown":
        raise _unknown(transaction)
    return home, fate


async def _home_of(mq: Connection, transaction: str) -> str:
    """The home of a write that was opened some time; InvalidInput: nobody knows it.

    The brokers that had rows of it know its home for some minutes after its end, later only its name tells.
    """
    home = await find_home(mq, WRITE, transaction)
    if isinstance(home, str):
        return home
    named = _NAMED.fullmatch(transaction)
    if named is not None and named[1] not in home:
        return named[1]  # it is away
    raise _unknown(transaction)


def _unknown(transaction: str) -> RayMQError:
    return InvalidInput("transaction", "a write of the last 7 days, which a broker knows", transaction)


def _not_known(transaction: str, home: str, error: RayMQError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"whether the write {transaction} is committed only {home} knows, which does not answer: do not repeat it"
        f" before finish_write(transaction) has said what has become of it ({error})",
        transaction=transaction,
    )
