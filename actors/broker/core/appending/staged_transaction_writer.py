"""Stage the writes of one broker: records of many tasks become visible together.

They become visible once, when their write is committed. A commit may be repeated after any failure: records that are in
the log already are not appended again. During a commit, and until all of it is on disk, a read barrier hides the write:
readers see all of its records in a queue, or none. After a crash the barrier is restored before any request is served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.commit_deduplicator import CommitDeduplicator, UnstoredRows, all_rows
from raymq.actors.broker.core.copies.record_copy import RecordAppender
from raymq.actors.broker.core.copies.republisher import STAGED, CopyPurpose, MessageLocation, Republisher
from raymq.actors.broker.core.writes.in_doubt_tracker import InDoubtTracker
from raymq.actors.naming import UNSENDABLE_TOPICS
from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.log.log_salvage import DamagedRange
from raymq.storage.records.record import MIN_RECORD_BYTES, OFFSET_QUEUE_ID
from raymq.storage.records.record_batch import strided
from raymq.storage.store import Store
from raymq.storage.tables.staged_chunk import StagedChunk, read_chunk, read_chunk_queue
from raymq.storage.tables.staged_records import (
    FINISHED_MARK_SECONDS,
    CommitDecision,
    MissingRows,
    StagedFile,
    StagedRecords,
    removable_folders,
    remove_folders,
)

_T = TypeVar("_T")
#: The reason for a row that is not appended because it may be in the log already.
_UNDECIDED = "the log is damaged where this row may be: the row is not stored again"


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The work of a commit.

    Attributes:
        decided: the decision that was stored when the commit was begun; None if it was not begun.
        files: the files of all chunks of its parts, in the order in which they are appended.
        topic_queues, rows: the queues and the number of rows in these files, if the commit was not begun.
    """

    decided: CommitDecision | None
    files: Sequence[StagedFile]
    topic_queues: Collection[tuple[str, int]] = ()
    rows: int = 0


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
        self._files = StagedRecords(store.directory)
        #: The writes to query at, or to report to, their coordinators.
        self.in_doubt = InDoubtTracker(elapsed)
        #: When each finished transaction ended whose mark is still kept.
        self._over: dict[str, float] = {}
        self._restore()

    def _restore(self) -> None:
        """Restore the state before the last stop, the read barriers first."""
        for each in self._files.transactions():
            if each.commit is not None:
                self._lower_again(each.name, each.commit, with_room=False)
            if each.over is not None:
                self._over[each.name] = self._elapsed()
            if each.over == "committed" and each.home:
                self.in_doubt.mark_done(each.name, each.home)
            elif each.over is None and each.home:
                self.in_doubt.recover(each.name, each.home)
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
        home: str = "",
    ) -> None:
        """Store a chunk of `topic_queue`'s records, invisible until the commit.

        Args:
            home: the broker that coordinates the transaction.

        Raises:
            InvalidInput: a record is invalid, or the transaction is decided; nothing is stored.
            StoreFull: the disk is too full for an append, too. StoreFailed.
        """
        self.prepare_chunk(transaction, part, number, topic_queue, records, sizes, home)()

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
        incarnation = self._store.incarnation(topic_queue[0])
        if coordinator:  # before the rows are stored, so that none are stored without a query about them
            self.in_doubt.touch(transaction, coordinator)
        chunk = transaction, part, number, topic_queue, records, sizes
        topic_id = None if topic_queue[0] in UNSENDABLE_TOPICS else self._id_of(topic_queue[0])
        return lambda: self._files.add(*chunk, home=coordinator, incarnation=incarnation, topic_id=topic_id)

    def count_open(self) -> int:
        """Count the transactions with rows here that are not over. Any thread."""
        return sum(each.over is None for each in self._files.transactions())

    def home_of(self, transaction: str) -> str | None:
        """Return the coordinator of a transaction that has or had rows here, or None."""
        return self._files.home_of(transaction)

    def is_committed(self, transaction: str) -> bool:
        """Return True if the whole transaction is in the log, on disk."""
        return self._files.is_committed(transaction)

    def is_closed(self, transaction: str) -> bool:
        """Return True if it is committed, visible, and its staged data are removed."""
        return self._files.is_committed(transaction) and self._files.decided(transaction) is None

    def is_begun(self, transaction: str) -> bool:
        """Return True if its commit was begun here and is not finished.

        The parts of such a commit are stored, and the commit must be completed.
        """
        return self._files.decided(transaction) is not None and not self._files.is_committed(transaction)

    def plan(self, transaction: str, parts: Collection[str]) -> CommitPlan:
        """Return the work of a `commit`, from all files of these parts.

        It may be called on any thread, after the last `stage` of the transaction.

        Raises:
            StoreFailed: the files cannot be read. StoreFull, StoreFailed: the commit was begun, and that cannot be
                stored.
        """
        decided = self._files.decided(transaction)
        if decided is not None:  # the call that stored it may have failed before it was on disk
            self._files.decide(transaction, decided)
            return CommitPlan(decided, self._files.list_files(transaction, decided.parts))
        files = self._files.list_files(transaction, parts)
        topic_queues: set[tuple[str, int]] = set()
        rows = 0
        for chunk_queue in (read_chunk_queue(file.path) for file in files):
            if chunk_queue is not None:
                topic_queues.add(chunk_queue[0])
                rows += chunk_queue[1]
        return CommitPlan(None, files, topic_queues, rows)

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
            topic_queue
            for topic_queue in plan.topic_queues
            if self._is_there(topic_queue[0]) and topic_queue[0] not in UNSENDABLE_TOPICS
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
        decided = CommitDecision(tuple(parts), ends, place, topic_ids, found=plan.rows, absent=absent, cut=cut)

        def keep() -> None:
            failpoint("staged.before_commit")
            self._files.decide(transaction, decided)
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
        return self._files.missing(transaction)

    def is_here(self, transaction: str) -> bool:
        """Return True if the transaction has, or recently had, rows here. Any thread."""
        return self._files.is_here(transaction)

    def commit(
        self, transaction: str, parts: Collection[str], rows: int | None = None, plan: CommitPlan | None = None
    ) -> Iterator[int]:
        """Append every chunk of `parts`, and yield the number of added records after each.

        The pauses let the event loop serve others. After an interrupted commit it also yields 0s while it searches the
        log for records that are there already. `close` has to follow when the log is flushed: until then the records
        are invisible.

        Args:
            rows: how many rows the parts have here together; missing rows are reported and do not block the others.
            plan: a plan for these parts, already begun; without it the files are read and the decision is stored here.
        """
        if self._files.is_committed(transaction):
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
            {*_topics(decided), *UNSENDABLE_TOPICS},
            (decided.log_from, decided.ends),
            lambda damage: self._pass(transaction, damage),
        )
        doubtful = [] if decided.uncertain_until is None else [(decided.log_from, decided.uncertain_until)]
        for file in plan.files:
            if not file.is_done:
                added = yield from self._append_chunk(transaction, file, stored, doubtful, decided)
                failpoint("staged.between_chunks")
                yield added
            elif doubtful:
                yield from self._claim(file, stored, doubtful, decided)

    def _pass(self, transaction: str, damage: DamagedRange) -> None:
        """Report damage in the log that is searched for rows of a commit.

        The damage does not block the other rows.
        """
        place = MessageLocation(physical_offset=damage.begin, message_id=self._copying.message_id(damage.begin))
        self._copying.quarantine(CopyPurpose(STAGED, transaction), [place], damage.reason)

    def close(self, transaction: str) -> None:
        """Finish a transaction that was appended and flushed: make it visible, remove its data."""
        self.mark_committed(transaction)
        self.closed(transaction)
        self.empty(transaction)

    def mark_committed(self, transaction: str) -> None:
        """Do the first part of `close`, which blocks on the disk. Any thread.

        Raise StoreFull or StoreFailed if it could not be done.
        """
        if not self.is_closed(transaction):  # else the records of the missing rows would be removed
            self._files.close(transaction)

    def closed(self, transaction: str) -> None:
        """Do the second part of `close`: make the transaction visible."""
        self._end(transaction)
        coordinator = self._files.home_of(transaction)
        if coordinator is not None:
            self.in_doubt.mark_done(transaction, coordinator)

    def empty(self, transaction: str) -> None:
        """Do the last part of `close` and `abort`: remove the staged data. Any thread."""
        self._files.empty(transaction)

    def abort(self, transaction: str) -> None:
        """Remove a transaction that will not be committed; a committed one is left alone."""
        self.drop(transaction)
        self.empty(transaction)

    def drop(self, transaction: str) -> None:
        """Do the first part of `abort`: no record becomes visible, and none can be added."""
        self.mark_aborted(transaction)
        self.dropped(transaction)

    def mark_aborted(self, transaction: str) -> None:
        """Do the first part of `drop`, which blocks on the disk.

        It may be called on any thread, while no commit of the transaction begins.
        """
        self._files.drop(transaction)

    def dropped(self, transaction: str) -> None:
        """Do the second part of `drop`: stop tracking the transaction."""
        if self._files.is_committed(transaction):
            self.in_doubt.mark_closed(transaction)
        elif self._files.decided(transaction) is None:
            self._end(transaction)
            self.in_doubt.forget(transaction)

    def sweep(self) -> Callable[[], None] | None:
        """Return a function that removes the marks of long finished transactions, or None.

        The function is to be called on another thread.
        """
        limit = self._elapsed() - FINISHED_MARK_SECONDS
        over = [name for name, ended in self._over.items() if ended <= limit and self.in_doubt.is_notified(name)]
        for transaction in over:
            del self._over[transaction]
        root = self._store.directory / "raymq" / "staged"
        if not over and not removable_folders(root):
            return None

        def remove() -> None:
            for transaction in over:
                self._files.mark_removable(transaction)
            remove_folders(removable_folders(root))

        return remove

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
        file: StagedFile,
        stored: CommitDeduplicator,
        doubtful: Sequence[tuple[int, int]],
        decided: CommitDecision,
    ) -> Generator[int, None, int]:
        """Append the missing records of one chunk, and return how many.

        A chunk that cannot be used is quarantined.
        """
        path = file.path
        try:
            chunk = _placed(read_chunk(path), decided)
        except StoreCorrupt as error:
            chunk_queue = read_chunk_queue(path)
            self._lose(transaction, path, None if chunk_queue is None else chunk_queue[1], error.reason)
            return 0
        if self._is_deleted(chunk):
            self._lose(transaction, path, len(chunk.sizes), f"topic {chunk.topic} was deleted")
            return 0
        attempts = self._files.attempts(chunk) if file.is_attempted else []
        sought = all_rows(chunk)
        if attempts or doubtful:
            sought = yield from _breathing(stored.missing(chunk, [*doubtful, *attempts]))
        for number in sought.undecided:
            self._refuse(f"{transaction}, record {number} of {path.name}", _UNDECIDED)
        return self._attempt(transaction, sought)

    def _is_deleted(self, chunk: StagedChunk) -> bool:
        """Return True if the topic of a chunk was deleted since, recreated or not."""
        if not self._is_there(chunk.topic) or self._store.incarnation(chunk.topic) > chunk.incarnation:
            return True
        return chunk.topic_id is not None and self._id_of(chunk.topic) != chunk.topic_id

    def _claim(
        self, file: StagedFile, stored: CommitDeduplicator, doubtful: Sequence[tuple[int, int]], decided: CommitDecision
    ) -> Generator[int, None, None]:
        """Claim the records of a stored chunk, so that no other chunk finds them."""
        with contextlib.suppress(StoreCorrupt):
            chunk = _placed(read_chunk(file.path), decided)
            attempts = self._files.attempts(chunk) if file.is_attempted else []
            yield from _breathing(stored.claim(chunk, [*doubtful, *attempts]))

    def _lose(self, transaction: str, path: Path, rows: int | None, reason: str) -> None:
        """Report and record that a chunk's file is unusable."""
        self._refuse(f"{transaction}, {path.name}", reason)
        self._files.record_lost_rows(path, rows, reason)

    def _refuse(self, owner: str, reason: str) -> None:
        """Report that some of the rows are not appended."""
        self._copying.quarantine(CopyPurpose(STAGED, owner), [MessageLocation()], reason)

    def _attempt(self, transaction: str, sought: UnstoredRows) -> int:
        """Append the missing rows of a chunk with `_add`, and return how many.

        The part of the log that was used is recorded. A chunk with lost rows gets no mark that it is done, so a
        repeated commit processes it again and reports the same.
        """
        chunk = sought.chunk
        self._files.begin_attempt(chunk, self._store.max_physical_offset)
        try:
            refused = self._add(transaction, sought)
            failpoint("staged.before_done")
            lost = [_UNDECIDED] * len(sought.undecided) + refused
            if lost:
                self._files.record_lost_rows(chunk.path, len(lost), "; ".join(dict.fromkeys(lost)))
                self._files.fail_attempt(chunk, self._store.max_physical_offset)
            else:
                self._files.finish(chunk, self._store.max_physical_offset)
        except Exception:
            with contextlib.suppress(StoreError):  # the disk refuses all appends then, until the store is reopened
                self._files.fail_attempt(chunk, self._store.max_physical_offset)
            raise
        return len(chunk.sizes) - len(refused)

    def _add(self, transaction: str, sought: UnstoredRows) -> list[str]:
        """Append records of a chunk, and return the reason of each one that was refused.

        Records that were damaged since they were staged are quarantined.
        """
        chunk, numbers = sought.chunk, sought.numbers
        records, sizes = chunk.records, chunk.sizes
        ends = np.cumsum(sizes, dtype=np.int64)
        topic_queue = chunk.topic, chunk.queue_id
        refused: list[str] = []

        def append(part: range) -> None:
            begin, end = int(ends[part[0]] - sizes[part[0]]), int(ends[part[-1]])
            self._append(records[begin:end], sizes[part.start : part.stop], topic_queue)

        def quarantine(part: range, reason: str) -> None:
            for number in part:
                owner = f"{transaction}, record {numbers[number]} of {chunk.path.name}"
                self._copying.quarantine(CopyPurpose(STAGED, owner), [MessageLocation(*topic_queue)], reason)
            refused.extend([reason] * len(part))

        self._copying.bisect_failures(range(len(sizes)), append, lambda _, __: None, quarantine)
        return refused


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
