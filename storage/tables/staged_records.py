"""Keep the staged writes of a broker: places of rows, and fates.

The rows lie in chunks in the commit log (`staged_chunk`), where no reader sees them. When the coordinator has decided
to commit a write, its chunks are appended again, to their queues. This table makes that repeatable: during an attempt
nothing but the chunk is appended. So the records between the begin and the end of an attempt belong to the chunk, and
all other records do not, even if they are equal. After a crash, an attempt ends where the log ended when the store was
next opened. If a power loss removes part of a chunk from the log, the chunk is no longer done.

Attempts, and which chunks are done, survive SIGKILL and are not synced. After a power loss any chunk may be anywhere
after the position that the decision names, and this part of the log is searched, once for all chunks. Lost rows are not
synced either, but their chunks are never done: a repeated commit checks them again.

The end of a write is kept for a while: it refuses a client that stages after the decision, for example an attempt that
was superseded.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.tables.staged_chunk import (
    Attempt,
    ChunkEntry,
    ChunkKey,
    MissingRows,
    Places,
    clamped_progress,
    ended_attempts,
)

#: The valid names of transactions and parts.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: How long the ends of finished transactions are kept.
FINISHED_MARK_SECONDS: Final = 600.0
#: The outcomes of a transaction.
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
#: The most reasons that are reported for missing rows.
_MAX_REASONS: Final = 3
#: Kinds of events, see the class.
_STAGED: Final = "s"
_MOVED: Final = "m"
_PROGRESS: Final = "p"
_DECIDED: Final = "c"
_FINISHED: Final = "f"
_REMOVED: Final = "r"


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """The decision to append the parts of a transaction.

    Attributes:
        parts: those that have chunks.
        ends: where each queue ended for readers before the first chunk.
        log_from: where the log ended then.
        topic_ids: the ids of the queues' topics then; a topic that was recreated since has another id.
        uncertain_until: None, or where the log ended after a power loss: any chunk may be between `log_from` and this
            position.
        absent: how many rows should have been in further chunks.
        cut: for each topic whose number of queues was reduced by then: the first removed queue id, and the number of
            queues among which the rows of removed queues are distributed.
    """

    parts: tuple[str, ...]
    ends: Mapping[tuple[str, int], int]
    log_from: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    uncertain_until: int | None = None
    absent: int = 0
    cut: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def queue_of(self, topic: str, queue_id: int) -> int:
        """Return the queue that receives the rows of a chunk that was staged for `queue_id`.

        It is another queue if the staged queue was removed.
        """
        gone_from, queues = self.cut.get(topic, (queue_id + 1, 1))
        return queue_id if queue_id < gone_from else queue_id % queues


#: The values of a decision in an event.
_Decision = tuple[
    tuple[str, ...],
    list[tuple[str, int, int]],
    int,
    dict[str, str],
    int | None,
    int,
    dict[str, tuple[int, Annotated[int, msgspec.Meta(ge=1)]]],
]
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{_NAME.pattern}\Z")]
#: The types of an event's values after its kind, see `StagedRecords`.
_EVENTS: Final[Mapping[str, Any]] = {
    _STAGED: tuple[_Name, str, _Name, int, str, int, int, int, str | None, Places],
    _MOVED: tuple[_Name, _Name, int, Places],
    _PROGRESS: tuple[_Name, _Name, int, tuple[Attempt, ...], int | None, int | None, str | None],
    _DECIDED: tuple[_Name, _Decision],
    _FINISHED: tuple[_Name, str, Literal["committed", "aborted"], int | None, str | None],
    _REMOVED: tuple[str],
}


@dataclass(slots=True)
class StagedTransaction:
    """A transaction that this broker has, or recently had, rows of. Only events change it.

    Attributes:
        coordinator: the broker that coordinates it; "" without one.
        chunks: its chunks, unless it is finished.
        commit: the decision to commit, if not all of it is in the log yet.
        over: COMMITTED or ABORTED if the transaction is finished.
        missing: the rows that are missing if it is committed.
    """

    name: str
    coordinator: str = ""
    chunks: dict[ChunkKey, ChunkEntry] = field(default_factory=dict)
    commit: CommitDecision | None = None
    over: str | None = None
    missing: MissingRows | None = None


class StagedRecords(JournaledTable):
    """The staged writes of one broker. Any thread may call any method.

    Events:
        ["s", transaction, coordinator, part, number, topic, queue id, rows, incarnation, topic id, places]: a chunk
        ["m", transaction, part, number, places]: its records are elsewhere; without places: they are lost
        ["p", transaction, part, number, attempts, done at, lost rows, reason]: the progress of its commit
        ["c", transaction, [parts, ends, log from, topic ids, uncertain until, absent, cut]]: the decision to commit
        ["f", transaction, coordinator, outcome, missing rows, reason]: the end, which removes all chunks
        ["r", transaction]: the transaction is removed
    """

    NUMBER: ClassVar = 13
    COPIES: ClassVar = 2

    def __init__(self) -> None:
        self._transactions: dict[str, StagedTransaction] = {}
        #: Held while a chunk is added or the outcome is recorded; never during a sync.
        self._deciding = threading.Lock()
        #: Held while the places of chunks change, and while `begin` reads them.
        self._placing = threading.Lock()
        #: The lowest place of all chunks; only under `_placing`, and valid if `_is_begin_known`.
        self._begin: int | None = None
        self._is_begin_known = True

    # -- chunks --------------------------------------------------------------------------------------------------

    def check_open(self, transaction: str, part: str, number: int, coordinator: str) -> None:
        """Raise InvalidInput if `add` would."""
        _checked("transaction", transaction)
        _checked("part", part)
        if not 0 <= number < 1_000_000:
            raise InvalidInput("number", "0..999999", number)
        known = self._transactions.get(transaction)
        if known is None:
            return
        if known.coordinator != coordinator:
            raise InvalidInput("home", f"the coordinator of {transaction}, which is {known.coordinator!r}", coordinator)
        if known.commit is not None or known.over is not None:
            raise InvalidInput("transaction", "one that is not decided yet", transaction)

    def add(self, transaction: str, coordinator: str, chunk: ChunkEntry) -> None:
        """Record the place of a synced chunk durably, replacing its number's.

        Args:
            coordinator: the broker that coordinates the transaction; "" without one.

        Raises:
            InvalidInput: a name or number is not valid, the transaction has another coordinator, or it is already
                decided. StoreFull, StoreFailed: the chunk is not staged.
        """
        self._decide(
            _staged(transaction, coordinator, chunk),
            lambda: self.check_open(transaction, chunk.part, chunk.number, coordinator),
        )

    def move(self, transaction: str, key: ChunkKey, places: Places) -> int:
        """Record that a chunk's records are elsewhere; return the number of the event."""
        return self.record(_MOVED, transaction, *key, places)

    def chunk(self, transaction: str, key: ChunkKey) -> ChunkEntry | None:
        """Return a chunk of an unfinished transaction, or None."""
        known = self._transactions.get(transaction)
        return None if known is None else known.chunks.get(key)

    def chunks(self, transaction: str, parts: Iterable[str]) -> list[ChunkEntry]:
        """Return the chunks of these parts, in the order of the parts."""
        known = self._transactions.get(transaction)
        by_part: dict[str, list[ChunkEntry]] = {_checked("part", part): [] for part in parts}
        for chunk in () if known is None else list(known.chunks.values()):
            if chunk.part in by_part:
                by_part[chunk.part].append(chunk)
        return [chunk for found in by_part.values() for chunk in sorted(found, key=lambda each: each.number)]

    def begin(self) -> int | None:
        """Return the physical offset of the first record of all chunks, or None without one."""
        with self._placing:
            if not self._is_begin_known:
                self._begin = min((begin for begin, _, _ in self._begins()), default=None)
                self._is_begin_known = True
            return self._begin

    def chunks_before(self, log_end: int) -> list[tuple[int, str, ChunkKey]]:
        """Return begin, transaction and key of chunks before `log_end`, in order."""
        with self._placing:
            return sorted(each for each in self._begins() if each[0] < log_end)

    def _begins(self) -> Iterator[tuple[int, str, ChunkKey]]:
        for transaction, known in self._transactions.items():
            for chunk in known.chunks.values():
                if chunk.begin is not None:
                    yield chunk.begin, transaction, chunk.key

    # -- transactions --------------------------------------------------------------------------------------------

    def transactions(self) -> list[StagedTransaction]:
        """Return all transactions on this broker."""
        return list(self._transactions.copy().values())

    def count_open(self) -> int:
        """Count the transactions that are not over."""
        return sum(each.over is None for each in self.transactions())

    def coordinator_of(self, transaction: str) -> str | None:
        """Return the coordinator of a transaction on this broker.

        Return None if the transaction or its coordinator is not known here.
        """
        known = self._transactions.get(_checked("transaction", transaction))
        return None if known is None else known.coordinator or None

    def is_here(self, transaction: str) -> bool:
        """Return True if this broker has, or recently had, rows of the transaction."""
        return _checked("transaction", transaction) in self._transactions

    def is_committed(self, transaction: str) -> bool:
        """Return True if the whole transaction is in the log."""
        known = self._transactions.get(_checked("transaction", transaction))
        return known is not None and known.over == COMMITTED

    def decided(self, transaction: str) -> CommitDecision | None:
        """Return the decision to commit an unfinished transaction, or None."""
        known = self._transactions.get(_checked("transaction", transaction))
        return None if known is None else known.commit

    def missing(self, transaction: str) -> MissingRows | None:
        """Return the missing rows of a committed transaction; None if none are missing."""
        known = self._transactions.get(_checked("transaction", transaction))
        return None if known is None else known.missing

    # -- progress of a commit ------------------------------------------------------------------------------------

    def decide(self, transaction: str, commit: CommitDecision) -> None:
        """Record the decision to append these parts durably, before the first of them is appended."""
        self._decide(_decided(_checked("transaction", transaction), commit))

    def begin_attempt(self, transaction: str, key: ChunkKey, log_end: int) -> None:
        """Declare that a chunk, or its missing rest, is about to be appended after `log_end`."""

        def begun(chunk: ChunkEntry) -> ChunkEntry:
            attempts = (*ended_attempts(chunk.attempts, log_end), (log_end, None))
            return replace(chunk, attempts=attempts, done_at=None, lost=None)

        self._advance(transaction, key, begun)

    def fail_attempt(self, transaction: str, key: ChunkKey, log_end: int, lost: MissingRows | None = None) -> None:
        """Record that the last attempt appended a chunk in part, before `log_end`."""
        self._advance(
            transaction, key, lambda chunk: replace(chunk, attempts=ended_attempts(chunk.attempts, log_end), lost=lost)
        )

    def finish(self, transaction: str, key: ChunkKey, log_end: int) -> None:
        """Mark a chunk as completely in the log, before `log_end`."""
        self._advance(transaction, key, lambda chunk: replace(chunk, done_at=log_end, lost=None))

    def lose(self, transaction: str, key: ChunkKey, reason: str) -> None:
        """Record that no row of a chunk can be appended."""
        self._advance(transaction, key, lambda chunk: replace(chunk, lost=MissingRows(chunk.rows, reason)))

    def _advance(self, transaction: str, key: ChunkKey, change: Callable[[ChunkEntry], ChunkEntry]) -> None:
        chunk = self.chunk(transaction, key)
        if chunk is not None:
            self.record(*_progress(transaction, change(chunk)))

    # -- ends ----------------------------------------------------------------------------------------------------

    def close(self, transaction: str) -> None:
        """Record durably that the transaction is in the log; remove its chunks."""
        failpoint("staged.before_close")
        if self.is_committed(transaction):
            self.sync()  # the call that recorded it may have failed before it was on disk
        else:
            self._end(transaction, COMMITTED, self._missing_now(transaction))
        failpoint("staged.after_close")

    def drop(self, transaction: str) -> None:
        """Record durably that a transaction is aborted, unless its commit is decided or complete."""
        known = self._transactions.get(_checked("transaction", transaction))
        if known is None or known.commit is not None:
            return
        if known.over is None:
            self._end(transaction, ABORTED, None)
        else:
            self.sync()

    def _end(self, transaction: str, outcome: str, missing: MissingRows | None) -> None:
        self._decide((_FINISHED, transaction, self.coordinator_of(transaction) or "", outcome, *_pair(missing)))

    def _decide(self, event: Fields, check: Callable[[], None] = lambda: None) -> None:
        """Record an event durably; no other one comes between `check` and it."""
        journal = self.journal
        with self._deciding:
            check()
            number = self.record(*event)
        if journal is not None:
            journal.sync(number)

    def _missing_now(self, transaction: str) -> MissingRows | None:
        """Return the missing rows of a commit that is about to be closed."""
        commit = self.decided(transaction)
        if commit is None:
            return None
        lost = [chunk.lost for chunk in self.chunks(transaction, commit.parts) if chunk.lost is not None]
        reasons = dict.fromkeys(each.reason for each in lost)
        if commit.absent:
            reasons = {f"{commit.absent} rows are not staged": None, **reasons}
        rows = commit.absent + sum(each.rows for each in lost)
        return MissingRows(rows, "; ".join(list(reasons)[:_MAX_REASONS])) if rows else None

    def remove(self, transaction: str) -> None:
        """Remove what is known of a transaction; a power loss may restore it."""
        if transaction in self._transactions:
            self.record(_REMOVED, transaction)

    def take_over(
        self, transaction: str, coordinator: str, chunks: Iterable[ChunkEntry], commit: CommitDecision | None
    ) -> None:
        """Record an unfinished transaction of another source. May be repeated; `sync` makes it durable."""
        for chunk in chunks:
            self.record(*_staged(transaction, coordinator, chunk))
            self.record(*_progress(transaction, chunk))
        if commit is not None:
            self.record(*_decided(transaction, commit))

    def take_over_end(self, transaction: str, coordinator: str, outcome: str, missing: MissingRows | None) -> None:
        """Record the end of a transaction of another source, as `take_over`."""
        self.record(_FINISHED, transaction, coordinator, outcome, *_pair(missing))

    # -- events --------------------------------------------------------------------------------------------------

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, *values = fields
        name, *rest = msgspec.convert(values, _EVENTS[kind])
        known = self._transactions.get(name)
        if kind == _STAGED:
            coordinator, *chunk = rest
            self._put(known or self._made(name), ChunkEntry(*chunk), coordinator=coordinator)
        elif kind in (_MOVED, _PROGRESS):
            part, number, *changed = rest
            chunk = None if known is None else known.chunks.get((part, number))
            if known is not None and chunk is not None:
                self._put(known, _moved(chunk, *changed) if kind == _MOVED else _advanced(chunk, *changed))
        elif kind == _DECIDED:
            (known or self._made(name)).commit = _decision(*rest[0])
        elif kind == _FINISHED:
            coordinator, over, *missing = rest
            self._clear(name)
            self._transactions[name] = StagedTransaction(name, coordinator, over=over, missing=_missing(*missing))
        else:
            self._clear(name)
            self._transactions.pop(name, None)

    def _made(self, name: str) -> StagedTransaction:
        return self._transactions.setdefault(name, StagedTransaction(name))

    def _put(self, known: StagedTransaction, chunk: ChunkEntry, *, coordinator: str | None = None) -> None:
        with self._placing:
            former = known.chunks.get(chunk.key)
            known.chunks[chunk.key] = chunk
            if coordinator is not None:
                known.coordinator = coordinator
            if former is not None and former.begin == self._begin and former.begin != chunk.begin:
                self._is_begin_known = False
            elif chunk.begin is not None:
                self._begin = chunk.begin if self._begin is None else min(self._begin, chunk.begin)

    def _clear(self, name: str) -> None:
        """Forget the places of a transaction that is about to be replaced or removed."""
        with self._placing:
            known = self._transactions.get(name)
            if known is not None and known.chunks:
                known.chunks = {}
                self._is_begin_known = False

    def snapshot(self) -> Iterator[Fields]:
        """Return events for each transaction and each of its chunks."""
        for name, known in self._transactions.copy().items():
            for chunk in list(known.chunks.values()):
                yield _staged(name, known.coordinator, chunk)
                if chunk.attempts or chunk.done_at is not None or chunk.lost is not None:
                    yield _progress(name, chunk)
            commit, over = known.commit, known.over
            if commit is not None:
                yield _decided(name, commit)
            if over is not None:
                yield _FINISHED, name, known.coordinator, over, *_pair(known.missing)

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:
        """Return the events by which chunks and commits refer to what the log has.

        No attempt is in progress when the store is opened, and positions that the log does not have are void.
        """
        for name, known in self._transactions.items():
            commit = known.commit if known.commit is None else clamped_commit(known.commit, bounds)
            for chunk in known.chunks.values():
                if any(offset + size > bounds.log_end for offset, size in chunk.places):
                    yield _MOVED, name, *chunk.key, ()
                clamped = clamped_progress(chunk, bounds, is_decided=commit is not None)
                if clamped != chunk:
                    yield _progress(name, clamped)
            if commit is not None and commit != known.commit:
                yield _decided(name, commit)

    def is_on_disk(self, number: int) -> bool:
        """Return True if the event of that number is on disk."""
        return self.journal is None or self.journal.synced >= number


def clamped_commit(commit: CommitDecision, bounds: RecoveryBounds) -> CommitDecision:
    """Return an unfinished commit for a log that may have lost its end.

    After a power loss it may have appended any of its chunks. Queues may end earlier than before. The records that it
    appends from now on begin there, and they are hidden from readers from there on.
    """
    if not bounds.memory_lost:
        return commit
    log_from = min(commit.log_from, bounds.log_end)
    ends = {
        (topic, queue_id): min(end, bounds.max_offset(topic, queue_id))
        if bounds.deleted_topics.get(topic, 0) <= log_from  # otherwise it is the end of a deleted queue
        else end
        for (topic, queue_id), end in commit.ends.items()
    }
    return replace(commit, ends=ends, log_from=log_from, uncertain_until=bounds.log_end)


def _staged(name: str, coordinator: str, chunk: ChunkEntry) -> Fields:
    place = chunk.topic, chunk.queue_id, chunk.rows, chunk.incarnation, chunk.topic_id
    return _STAGED, name, coordinator, *chunk.key, *place, chunk.places


def _progress(name: str, chunk: ChunkEntry) -> Fields:
    return _PROGRESS, name, *chunk.key, chunk.attempts, chunk.done_at, *_pair(chunk.lost)


def _decided(name: str, commit: CommitDecision) -> Fields:
    ends = [[topic, queue_id, end] for (topic, queue_id), end in commit.ends.items()]
    content = [list(commit.parts), ends, commit.log_from, dict(commit.topic_ids), commit.uncertain_until]
    return _DECIDED, name, [*content, commit.absent, {topic: list(each) for topic, each in commit.cut.items()}]


def _pair(missing: MissingRows | None) -> tuple[int | None, str | None]:
    return (None, None) if missing is None else (missing.rows, missing.reason)


def _missing(rows: int | None, reason: str | None) -> MissingRows | None:
    return None if rows is None else MissingRows(rows, reason or "")


def _moved(chunk: ChunkEntry, places: Places) -> ChunkEntry:
    return replace(chunk, places=places)


def _advanced(chunk: ChunkEntry, attempts: tuple[Attempt, ...], done_at: int | None, *lost: Any) -> ChunkEntry:
    return replace(chunk, attempts=attempts, done_at=done_at, lost=_missing(*lost))


def _decision(
    parts: tuple[str, ...], ends: Iterable[tuple[str, int, int]], log_from: int, *more: Any
) -> CommitDecision:
    return CommitDecision(parts, {(topic, queue_id): end for topic, queue_id, end in ends}, log_from, *more)


def read_decision(values: Sequence[Any]) -> CommitDecision:
    """Return a decision from its values in an event.

    Raise ValueError if they are no such values.
    """
    return _decision(*msgspec.convert(values, _Decision))


def _checked(field_name: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(field_name, "1 to 64 letters, digits, _ or -", name)
    return name
