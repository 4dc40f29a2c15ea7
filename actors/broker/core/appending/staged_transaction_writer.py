"""Stage the writes of one broker: records of many tasks become visible together.

They become visible once, when their write is committed. A commit may be repeated after any failure: records that are in
the log already are not appended again. During a commit, and until all of it is on disk, a read barrier hides the write:
readers see all of its records in a queue, or none. After a crash the barrier is restored before any request is served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending import staged_folders
from raymq.actors.broker.core.appending.commit_deduplicator import CommitDeduplicator, UnstoredRows, all_rows
from raymq.actors.broker.core.appending.staged_chunk_log import StagedChunkLog
from raymq.actors.broker.core.copies.record_copy import RecordAppender
from raymq.actors.broker.core.copies.republisher import STAGED, CopyPurpose, MessageLocation, Republisher
from raymq.actors.broker.core.writes.in_doubt_tracker import InDoubtTracker
from raymq.actors.naming import UNSENDABLE_TOPICS
from raymq.storage.cooperative_steps import Steps
from raymq.storage.emergency_cleaner import releasable_disk_reserve
from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.log.log_salvage import DamagedRange
from raymq.storage.records.record import MIN_RECORD_BYTES, OFFSET_QUEUE_ID
from raymq.storage.records.record_batch import strided
from raymq.storage.staged_topic import STAGED_TOPIC
from raymq.storage.store import Store
from raymq.storage.tables.staged_chunk import StagedChunk, chunk_name, encode_chunk
from raymq.storage.tables.staged_records import (
    COMMITTED,
    FINISHED_MARK_SECONDS,
    ChunkEntry,
    CommitDecision,
    MissingRows,
)

#: The topics of the brokers themselves to which staged rows may be committed: delayed rows wait there.
_WAITING_TOPICS: Final = UNSENDABLE_TOPICS - {STAGED_TOPIC}
_T = TypeVar("_T")
#: The reason for a row that is not appended because it may be in the log already.
_UNDECIDED = "the log is damaged where this row may be: the row is not stored again"


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The work of a commit.

    Attributes:
        decided: the decision that was stored when the commit was begun; None if it was not begun.
        chunks: all chunks of its parts, in the order in which they are appended.
    """

    decided: CommitDecision | None
    chunks: Sequence[ChunkEntry]

    @property
    def rows(self) -> int:
        """Return the number of rows in the chunks."""
        return sum(chunk.rows for chunk in self.chunks)


class StagedTransactionWriter:
    """Stages chunks, and appends those of the committed parts.

    `elapsed` is seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        append: RecordAppender,
        copying: Republisher,
        arrived: Callable[[Sequence[tuple[str, int]]], None],
        elapsed: Callable[[], float],
    ) -> None:
        """Create the writer; `arrived` is called with the queues whose readable end moved."""
        self._store = store
        self._append = append
        self._copying = copying
        self._arrived = arrived
        self._elapsed = elapsed
        self._table = store.tables.staged
        self.chunks = StagedChunkLog(store, self._table, append)
        #: The writes to query at, or to report to, their coordinators.
        self.in_doubt = InDoubtTracker(elapsed)
        #: When each finished transaction ended whose mark is still kept.
        self._over: dict[str, float] = {}
        staged_folders.convert(store, self._table, self.chunks)
        self._restore()

    def _restore(self) -> None:
        """Restore the state before the last stop, the read barriers first."""
        for each in self._table.transactions():
            if each.commit is not None:
                self._lower_again(each.name, each.commit, with_room=False)
            if each.over is not None:
                self._over[each.name] = self._elapsed()
            if each.over == COMMITTED and each.coordinator:
                self.in_doubt.mark_done(each.name, each.coordinator)
            elif each.over is None and each.coordinator:
                self.in_doubt.recover(each.name, each.coordinator)
            elif each.commit is None:  # without a coordinator it will never be decided
                self._over.setdefault(each.name, self._elapsed())

    def stage(
        self,
        transaction: str,
        part: str,
        number: int,
        topic_queue: tuple[str, int],
        records: memoryview,
        sizes: npt.NDArray[np.int32],
        coordinator: str = "",
    ) -> None:
        """Store a chunk of `topic_queue`'s records, invisible until the commit.

        Args:
            coordinator: the broker that coordinates the transaction.

        Raises:
            InvalidInput: a record is invalid, or the transaction is decided; nothing is stored.
            StoreFull: the disk is too full for an append, too. StoreFailed.
        """
        self.prepare_chunk(transaction, part, number, topic_queue, records, sizes, coordinator)()

    def prepare_chunk(
        self,
        transaction: str,
        part: str,
        number: int,
        topic_queue: tuple[str, int],
        records: memoryview,
        sizes: npt.NDArray[np.int32],
        coordinator: str,
    ) -> Callable[[], None]:
        """Prepare `stage`, and return the part that blocks on the disk.

        The returned function may be called on any thread. Both raise the errors of `stage`.
        """
        self._store.check_room()
        self._store.check(records, sizes, topic_queue)
        self._table.check_open(transaction, part, number, coordinator)
        incarnation = self._store.incarnation(topic_queue[0])
        topic_id = None if topic_queue[0] in UNSENDABLE_TOPICS else self._id_of(topic_queue[0])
        if coordinator:  # before the rows are stored, so that none are stored without a query about them
            self.in_doubt.touch(transaction, coordinator)
        content = encode_chunk(topic_queue, records, sizes)
        places = self.chunks.append(chunk_name(transaction, part, number), content)
        chunk = ChunkEntry(part, number, *topic_queue, len(sizes), incarnation, topic_id, places)

        def keep() -> None:
            self._store.flush()  # the table never names records that a loss of power could take
            failpoint("staged.before_chunk")
            self._table.add(transaction, coordinator, chunk)

        return keep

    def count_open(self) -> int:
        """Count the transactions with rows here that are not over. Any thread."""
        return sum(each.over is None for each in self._table.transactions())

    def coordinator_of(self, transaction: str) -> str | None:
        """Return the coordinator of a transaction that has or had rows here, or None."""
        return self._table.coordinator_of(transaction)

    def is_committed(self, transaction: str) -> bool:
        """Return True if the whole transaction is in the log, on disk."""
        return self._table.is_committed(transaction)

    def is_begun(self, transaction: str) -> bool:
        """Return True if its commit was begun here and is not finished.

        The parts of such a commit are stored, and the commit must be completed.
        """
        return self._table.decided(transaction) is not None and not self._table.is_committed(transaction)

    def plan(self, transaction: str, parts: Collection[str]) -> CommitPlan:
        """Return the work of a `commit`.

        It may be called on any thread, after the last `stage` of the transaction.

        Raises:
            StoreFull, StoreFailed: the commit was begun, and that cannot be stored.
        """
        decided = self._table.decided(transaction)
        if decided is not None:
            self._table.sync()  # the call that stored it may have failed before it was on disk
        return CommitPlan(decided, self._table.chunks(transaction, parts if decided is None else decided.parts))

    def begin(
        self, transaction: str, parts: Collection[str], rows: int | None, plan: CommitPlan
    ) -> tuple[CommitPlan, Callable[[], None]]:
        """Put up the read barriers of a commit that was not begun yet.

        Args:
            rows: as `commit`.

        Returns:
            the plan of the begun commit; and a function that stores the decision that these parts are committed, to be
            called on any thread before `commit`. `rollback_begin` has to follow if that function fails.

        Raises:
            StoreFull, StoreFailed: the commit is not begun.
        """
        # Delayed records wait in system topics, where no consumer reads them.
        topic_queues = {
            (chunk.topic, chunk.queue_id)
            for chunk in plan.chunks
            if self._is_there(chunk.topic) and chunk.topic not in UNSENDABLE_TOPICS
        }
        cut = self._cut(topic_queues)
        if rows is not None and plan.rows != rows:
            self._refuse(transaction, f"{rows} rows were staged here, {plan.rows} were found")
        undecided = CommitDecision((), {}, 0, cut=cut)
        topic_queues = {(topic, undecided.queue_of(topic, queue_id)) for topic, queue_id in topic_queues}
        try:
            ends = self._store.read_barrier.block(transaction, dict.fromkeys(topic_queues))
        except StoreError:
            self.rollback_begin(transaction)
            raise
        topic_ids = {topic: self._id_of(topic) or "" for topic, _ in topic_queues}
        absent = 0 if rows is None else max(0, rows - plan.rows)
        place = self._store.max_physical_offset
        staged = {chunk.part for chunk in plan.chunks}
        named = tuple(part for part in parts if part in staged)
        decided = CommitDecision(named, ends, place, topic_ids, absent=absent, cut=cut)

        def keep() -> None:
            failpoint("staged.before_commit")
            self._table.decide(transaction, decided)
            failpoint("staged.after_commit")

        return replace(plan, decided=decided), keep

    def rollback_begin(self, transaction: str) -> None:
        """Remove the read barriers of a commit whose decision could not be stored.

        Nothing of the commit is in the log. If the decision was stored after all, the barriers stay.
        """
        # If the decision was stored after all, its barriers return at the same offsets, so they must stay until then.
        if not self.is_begun(transaction) and (topic_queues := self._store.read_barrier.unblock(transaction)):
            self._arrived(topic_queues)

    def missing(self, transaction: str) -> MissingRows | None:
        """Return how many rows of a committed transaction are missing, and why.

        The result is None if no row is missing. Any thread.
        """
        return self._table.missing(transaction)

    def is_here(self, transaction: str) -> bool:
        """Return True if the transaction has, or recently had, rows here. Any thread."""
        return self._table.is_here(transaction)

    def commit(
        self, transaction: str, parts: Collection[str], rows: int | None = None, plan: CommitPlan | None = None
    ) -> Iterator[int]:
        """Append every chunk of `parts`, and yield the number of added records after each.

        The pauses let the event loop serve others. After an interrupted commit it also yields 0s while it searches the
        log for records that are there already. `close` has to follow when the log is flushed: until then the records
        are invisible.

        Args:
            rows: how many rows the parts have here together; missing rows are reported and do not block the others.
            plan: a plan for these parts, already begun; without it the decision is stored here.
        """
        if self._table.is_committed(transaction):
            return
        plan = plan or self.plan(transaction, parts)
        if plan.decided is None:
            plan, keep = self.begin(transaction, parts, rows, plan)
            keep()
        else:
            self._lower_again(transaction, plan.decided, with_room=True)
        decided = plan.decided
        assert decided is not None
        stored = CommitDeduplicator(
            self._store.salvage_walk,
            self._store.max_physical_offset,
            {*_topics(decided), *_WAITING_TOPICS},
            (decided.log_from, decided.ends),
            lambda damage: self._pass(transaction, damage),
        )
        doubtful = [] if decided.uncertain_until is None else [(decided.log_from, decided.uncertain_until)]
        for planned in plan.chunks:
            chunk = self._table.chunk(transaction, planned.key)  # its records may have been moved since
            if chunk is not None and chunk.done_at is None:
                added = yield from self._append_chunk(transaction, chunk, stored, doubtful, decided)
                failpoint("staged.between_chunks")
                yield added
            elif chunk is not None and doubtful:
                yield from self._claim(transaction, chunk, stored, doubtful, decided)

    def _pass(self, transaction: str, damage: DamagedRange) -> None:
        """Report damage in the log that is searched for rows of a commit.

        The damage does not block the other rows.
        """
        place = MessageLocation(physical_offset=damage.begin, message_id=self._copying.message_id(damage.begin))
        self._copying.quarantine(CopyPurpose(STAGED, transaction), [place], damage.reason)

    def close(self, transaction: str) -> None:
        """Finish a transaction that was appended and flushed: make it visible, forget its chunks."""
        self.mark_committed(transaction)
        self.closed(transaction)

    def mark_committed(self, transaction: str) -> None:
        """Do the first part of `close`, which blocks on the disk. Any thread.

        Raise StoreFull or StoreFailed if it could not be done.
        """
        self._table.close(transaction)

    def closed(self, transaction: str) -> None:
        """Do the second part of `close`: make the transaction visible."""
        coordinator = self._table.coordinator_of(transaction)
        if coordinator is not None and transaction not in self._over:
            self.in_doubt.mark_done(transaction, coordinator)
        self._end(transaction)

    def abort(self, transaction: str) -> None:
        """Drop a transaction: no record becomes visible, and none can be added.

        A committed one is left alone.
        """
        self.mark_aborted(transaction)
        self.dropped(transaction)

    def mark_aborted(self, transaction: str) -> None:
        """Do the first part of `abort`, which blocks on the disk.

        It may be called on any thread, while no commit of the transaction begins.
        """
        self._table.drop(transaction)

    def dropped(self, transaction: str) -> None:
        """Do the second part of `abort`: stop tracking the transaction."""
        if self._table.is_committed(transaction):
            self.in_doubt.mark_closed(transaction)
        elif self._table.decided(transaction) is None:
            self._end(transaction)
            self.in_doubt.forget(transaction)

    def sweep(self) -> None:
        """Forget the transactions that were finished long ago."""
        limit = self._elapsed() - FINISHED_MARK_SECONDS
        for name, ended in list(self._over.items()):
            if ended <= limit and self.in_doubt.is_notified(name):
                self._table.remove(name)
                del self._over[name]

    def _end(self, transaction: str) -> None:
        self._over.setdefault(transaction, self._elapsed())
        topic_queues = self._store.read_barrier.unblock(transaction)
        if topic_queues:
            self._arrived(topic_queues)

    def _lower_again(self, transaction: str, decided: CommitDecision, *, with_room: bool) -> None:
        """Restore the read barriers with which a commit was begun.

        They also cover the records that it has appended to topics that were deleted since.
        """
        topics = {topic for topic, _ in decided.ends}
        # Older versions did not store the ids of the topics.
        same = {topic for topic in topics if decided.topic_ids.get(topic, self._id_of(topic)) == self._id_of(topic)}
        now = {topic_queue for topic_queue in decided.ends if topic_queue[0] in same and self._is_there(topic_queue[0])}
        read_barrier = self._store.read_barrier
        read_barrier.block(
            transaction,
            {topic_queue: end for topic_queue, end in decided.ends.items() if topic_queue in now},
            with_room=with_room,
        )
        read_barrier.block_deleted(
            transaction, {topic_queue: end for topic_queue, end in decided.ends.items() if topic_queue not in now}
        )

    def _id_of(self, topic: str) -> str | None:
        """Return the id of the topic that now has this name, or None."""
        config = self._store.topic_configs.get(topic)
        return None if config is None else config.topic_id

    def _is_there(self, topic: str) -> bool:
        return topic in UNSENDABLE_TOPICS or self._store.topic_configs.get(topic) is not None

    def _cut(self, topic_queues: Collection[tuple[str, int]]) -> dict[str, tuple[int, int]]:
        """Return, by topic, how rows of removed queues are reassigned; see `CommitDecision`.

        A queue that was removed from its topic since staging, and is not read, gets no more rows.
        """
        cut = {}
        for topic, queue_id in topic_queues:
            config = self._store.topic_configs.get(topic)
            if config is not None and queue_id >= config.read_queues:
                cut[topic] = config.read_queues, max(1, min(config.read_queues, config.write_queues))
        return cut

    def _append_chunk(
        self,
        transaction: str,
        chunk: ChunkEntry,
        stored: CommitDeduplicator,
        doubtful: Sequence[tuple[int, int]],
        decided: CommitDecision,
    ) -> Generator[int, None, int]:
        """Append the missing records of one chunk, and return how many.

        A chunk that cannot be used is quarantined.
        """
        try:
            rows = _placed(self.chunks.read(transaction, chunk), decided)
        except StoreCorrupt as error:
            self._lose(transaction, chunk, error.reason)
            return 0
        if self._is_deleted(chunk):
            self._lose(transaction, chunk, f"topic {chunk.topic} was deleted")
            return 0
        sought = all_rows(rows)
        if chunk.attempts or doubtful:
            sought = yield from _breathing(stored.missing(rows, [*doubtful, *chunk.attempts]))
        for number in sought.undecided:
            self._refuse(_owner(transaction, chunk, number), _UNDECIDED)
        return self._attempt(transaction, chunk, sought)

    def _is_deleted(self, chunk: ChunkEntry) -> bool:
        """Return True if the topic of a chunk was deleted since, recreated or not."""
        if not self._is_there(chunk.topic) or self._store.incarnation(chunk.topic) > chunk.incarnation:
            return True
        return chunk.topic_id is not None and self._id_of(chunk.topic) != chunk.topic_id

    def _claim(
        self,
        transaction: str,
        chunk: ChunkEntry,
        stored: CommitDeduplicator,
        doubtful: Sequence[tuple[int, int]],
        decided: CommitDecision,
    ) -> Generator[int, None, None]:
        """Claim the records of a stored chunk, so that no other chunk finds them."""
        with contextlib.suppress(StoreCorrupt):
            rows = _placed(self.chunks.read(transaction, chunk), decided)
            yield from _breathing(stored.claim(rows, [*doubtful, *chunk.attempts]))

    def _lose(self, transaction: str, chunk: ChunkEntry, reason: str) -> None:
        """Report and record that a chunk is unusable."""
        self._refuse(_owner(transaction, chunk), reason)
        self._table.lose(transaction, chunk.key, reason)

    def _refuse(self, owner: str, reason: str) -> None:
        """Report that some of the rows are not appended."""
        self._copying.quarantine(CopyPurpose(STAGED, owner), [MessageLocation()], reason)

    def _attempt(self, transaction: str, chunk: ChunkEntry, sought: UnstoredRows) -> int:
        """Append the missing rows of a chunk with `_add`, and return how many.

        The part of the log that was used is recorded. A chunk with lost rows is never done, so a repeated commit
        processes it again and reports the same.
        """
        self._table.begin_attempt(transaction, chunk.key, self._store.max_physical_offset)
        try:
            refused = self._add(transaction, chunk, sought)
            failpoint("staged.before_done")
            lost = [_UNDECIDED] * len(sought.undecided) + refused
            if lost:
                reasons = MissingRows(len(lost), "; ".join(dict.fromkeys(lost)))
                self._table.fail_attempt(transaction, chunk.key, self._store.max_physical_offset, reasons)
            else:
                self._table.finish(transaction, chunk.key, self._store.max_physical_offset)
        except Exception:
            # Otherwise rows that others append from now on would be taken for rows of this chunk. If even the disk
            # reserve is used up, or the disk fails, it refuses these rows, too.
            with contextlib.suppress(StoreError), releasable_disk_reserve(self._store.directory):
                self._table.fail_attempt(transaction, chunk.key, self._store.max_physical_offset)
            raise
        return len(sought.chunk.sizes) - len(refused)

    def _add(self, transaction: str, chunk: ChunkEntry, sought: UnstoredRows) -> list[str]:
        """Append records of a chunk, and return the reason of each one that was refused.

        Records that were damaged since they were staged are quarantined.
        """
        rows, numbers = sought.chunk, sought.numbers
        records, sizes = rows.records, rows.sizes
        ends = np.cumsum(sizes, dtype=np.int64)
        topic_queue = rows.topic, rows.queue_id
        refused: list[str] = []

        def append(part: range) -> None:
            begin, end = int(ends[part[0]] - sizes[part[0]]), int(ends[part[-1]])
            self._append(records[begin:end], sizes[part.start : part.stop], topic_queue)

        def quarantine(part: range, reason: str) -> None:
            for number in part:
                owner = _owner(transaction, chunk, numbers[number])
                self._copying.quarantine(CopyPurpose(STAGED, owner), [MessageLocation(*topic_queue)], reason)
            refused.extend([reason] * len(part))

        self._copying.bisect_failures(range(len(sizes)), append, lambda _, __: None, quarantine)
        return refused


def _owner(transaction: str, chunk: ChunkEntry, record: int | None = None) -> str:
    """Return the name of a chunk, or of a record in it, for reports."""
    of_chunk = f"chunk {chunk.number} of part {chunk.part}"
    return f"{transaction}, {of_chunk}" if record is None else f"{transaction}, record {record} of {of_chunk}"


def _placed(chunk: StagedChunk, decided: CommitDecision) -> StagedChunk:
    """Return a chunk with the queue to which it is appended.

    Its own queue may have been removed from the topic since it was staged.
    """
    queue_id = decided.queue_of(chunk.topic, chunk.queue_id)
    if queue_id == chunk.queue_id or int(chunk.sizes.min(initial=MIN_RECORD_BYTES)) < MIN_RECORD_BYTES:
        return chunk
    records = bytearray(chunk.records)
    starts = np.cumsum(chunk.sizes, dtype=np.int64) - chunk.sizes
    strided(records, ">i4")[starts + OFFSET_QUEUE_ID] = queue_id
    return replace(chunk, queue_id=queue_id, records=memoryview(records))


def _topics(decided: CommitDecision) -> set[str]:
    return {topic for topic, _ in decided.ends}


def _breathing(steps: Steps[_T]) -> Generator[int, None, _T]:
    """Convert `steps` to items that `commit` yields.

    Each item is 0, because no step has added a record; no step needs another thread.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        yield 0
