"""Append the staged rows of one committed write, which become visible together.

A commit may be repeated after any failure: records that are in the log already are not appended again. While it runs,
and until all of it is on disk, a read barrier hides the write: readers see all of its records in a queue, or none.
After a crash the barrier is restored before any request is served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from raymq.actors.broker.core.appending.commit_deduplicator import CommitDeduplicator, UnstoredRows, all_rows
from raymq.actors.broker.core.appending.staged_chunk_log import StagedChunkLog
from raymq.actors.broker.core.copies.record_copy import RecordAppender
from raymq.actors.broker.core.copies.republisher import STAGED, CopyPurpose, CopyRefusal, MessageLocation, Republisher
from raymq.actors.naming import UNSENDABLE_TOPICS
from raymq.storage.emergency_cleaner import releasable_disk_reserve
from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.log.log_salvage import DamagedRange
from raymq.storage.records.record import MIN_RECORD_BYTES, OFFSET_QUEUE_ID
from raymq.storage.records.record_batch import strided
from raymq.storage.staged_topic import STAGED_TOPIC
from raymq.storage.store import Store
from raymq.storage.tables.staged_chunk import ChunkEntry, MissingRows, StagedChunk
from raymq.storage.tables.staged_records import CommitDecision

#: The topics of the brokers themselves to which staged rows may be committed: delayed rows wait there.
_WAITING_TOPICS: Final = UNSENDABLE_TOPICS - {STAGED_TOPIC}
#: The reason for a row that is not appended because it may be in the log already.
_UNDECIDED = "the log is damaged where this row may be: the row is not stored again"
_NOWHERE: Final = MessageLocation()


class StagedCommit:
    """The commit of one transaction.

    The calls, in this order: `load`; if `is_begun` is False then, `block_readers` and `record_decision`; `append` to
    its end. `load` and `record_decision` block on the disk and may run on any thread. If a call before `append` fails,
    `StagedTransactionWriter.roll_back` has to follow.
    """

    def __init__(
        self,
        store: Store,
        chunk_log: StagedChunkLog,
        append: RecordAppender,
        republisher: Republisher,
        transaction: str,
        parts: Collection[str],
        rows: int | None,
    ) -> None:
        """Create the commit of these parts.

        Args:
            rows: how many rows the parts have here together; missing rows are reported and do not block the others.
                None: it is not known.
        """
        self._store = store
        self._table = store.tables.staged
        self._chunk_log = chunk_log
        self._append_records = append
        self._republisher = republisher
        self._transaction = transaction
        self._parts = parts
        self._rows = rows
        self._decision: CommitDecision | None = None
        self._chunks: Sequence[ChunkEntry] = ()
        #: Whether `load` found the decision, so that parts of the commit may be in the log.
        self.is_begun = False

    def load(self) -> None:
        """Read the decision, if there is one, and the chunks.

        Raises:
            StoreFull, StoreFailed: the commit was begun, and that cannot be stored.
        """
        self._decision = self._table.decided(self._transaction)
        self.is_begun = self._decision is not None
        if self.is_begun:
            self._table.sync()  # the call that stored it may have failed before it was on disk
        parts = self._parts if self._decision is None else self._decision.parts
        self._chunks = self._table.chunks(self._transaction, parts)

    def block_readers(self) -> None:
        """Put up the read barriers.

        Raise StoreFull or StoreFailed if there is no room for them.
        """
        # Delayed records wait in system topics, where no consumer reads them.
        topic_queues = {
            (chunk.topic, chunk.queue_id)
            for chunk in self._chunks
            if _exists(self._store, chunk.topic) and chunk.topic not in UNSENDABLE_TOPICS
        }
        cut = self._cut(topic_queues)
        found = sum(chunk.rows for chunk in self._chunks)
        if self._rows is not None and found != self._rows:
            self._refuse(self._transaction, f"{self._rows} rows were staged here, {found} were found")
        undecided = CommitDecision((), {}, 0, cut=cut)
        topic_queues = {(topic, undecided.queue_of(topic, queue_id)) for topic, queue_id in topic_queues}
        ends = self._store.read_barrier.block(self._transaction, dict.fromkeys(topic_queues))
        staged = {chunk.part for chunk in self._chunks}
        self._decision = CommitDecision(
            tuple(part for part in self._parts if part in staged),
            ends,
            self._store.max_physical_offset,
            {topic: _id_of(self._store, topic) or "" for topic, _ in topic_queues},
            absent=0 if self._rows is None else max(0, self._rows - found),
            cut=cut,
        )

    def record_decision(self) -> None:
        """Store the decision to append the parts.

        Raises:
            StoreFull, StoreFailed: it may be stored or not.
        """
        failpoint("staged.before_commit")
        self._table.decide(self._transaction, self._decided)
        failpoint("staged.after_commit")

    def append(self) -> Iterator[int]:
        """Append every chunk that the log lacks; yield the added records of each.

        The pauses let the event loop serve others. A begun commit also yields 0s while it searches the log for records
        that are there already. The records are invisible until the transaction is closed, after the log is flushed.
        """
        decided = self._decided
        if self.is_begun:
            restore_barriers(self._store, self._transaction, decided, with_room=True)
        stored = CommitDeduplicator(
            self._store.salvage_walk,
            self._store.max_physical_offset,
            {*(topic for topic, _ in decided.ends), *_WAITING_TOPICS},
            (decided.log_from, decided.ends),
            self._report_damage,
        )
        uncertain = [] if decided.uncertain_until is None else [(decided.log_from, decided.uncertain_until)]
        for planned in self._chunks:
            chunk = self._table.chunk(self._transaction, planned.key)  # its records may have been moved since
            if chunk is None:
                continue
            searched = [*uncertain, *chunk.attempts]
            if chunk.done_at is None:
                added = yield from self._append_chunk(chunk, stored, searched)
                failpoint("staged.between_chunks")
                yield added
            elif uncertain:  # its records are claimed, so that no other chunk finds them
                with contextlib.suppress(StoreCorrupt):
                    yield from stored.missing(self._read(chunk), searched)

    @property
    def _decided(self) -> CommitDecision:
        assert self._decision is not None
        return self._decision

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
        self, chunk: ChunkEntry, stored: CommitDeduplicator, searched: Sequence[tuple[int, int | None]]
    ) -> Generator[int, None, int]:
        """Append the missing records of one chunk, and return how many.

        A chunk that cannot be used is quarantined. `searched` are the parts of the log that may have records of it.
        """
        try:
            rows = self._read(chunk)
        except StoreCorrupt as error:
            self._lose(chunk, error.reason)
            return 0
        if self._is_deleted(chunk):
            self._lose(chunk, f"topic {chunk.topic} was deleted")
            return 0
        unstored = (yield from stored.missing(rows, searched)) if searched else all_rows(rows)
        for number in unstored.undecided:
            self._refuse(self._owner(chunk, number), _UNDECIDED)
        return self._attempt(chunk, unstored)

    def _read(self, chunk: ChunkEntry) -> StagedChunk:
        """Return a chunk with the queue to which it is appended.

        Its own queue may have been removed from the topic since it was staged.
        """
        rows = self._chunk_log.read(self._transaction, chunk)
        queue_id = self._decided.queue_of(rows.topic, rows.queue_id)
        if queue_id == rows.queue_id or int(rows.sizes.min(initial=MIN_RECORD_BYTES)) < MIN_RECORD_BYTES:
            return rows
        records = bytearray(rows.records)
        starts = np.cumsum(rows.sizes, dtype=np.int64) - rows.sizes
        strided(records, ">i4")[starts + OFFSET_QUEUE_ID] = queue_id
        return replace(rows, queue_id=queue_id, records=memoryview(records))

    def _is_deleted(self, chunk: ChunkEntry) -> bool:
        """Return True if the topic of a chunk was deleted since, recreated or not."""
        if not _exists(self._store, chunk.topic) or self._store.incarnation(chunk.topic) > chunk.incarnation:
            return True
        return chunk.topic_id is not None and _id_of(self._store, chunk.topic) != chunk.topic_id

    def _attempt(self, chunk: ChunkEntry, unstored: UnstoredRows) -> int:
        """Append the missing rows of a chunk with `_add`, and return how many.

        The part of the log that was used is recorded. A chunk with lost rows is never done, so a repeated commit
        processes it again and reports the same.
        """
        place = self._transaction, chunk.key
        self._table.begin_attempt(*place, self._store.max_physical_offset)
        try:
            refused = self._add(chunk, unstored)
            failpoint("staged.before_done")
            lost = [_UNDECIDED] * len(unstored.undecided) + refused
            if lost:
                reasons = MissingRows(len(lost), "; ".join(dict.fromkeys(lost)))
                self._table.fail_attempt(*place, self._store.max_physical_offset, reasons)
            else:
                self._table.finish(*place, self._store.max_physical_offset)
        except Exception:
            # Otherwise rows that others append from now on would be taken for rows of this chunk. If even the disk
            # reserve is used up, or the disk fails, it refuses these rows, too.
            with contextlib.suppress(StoreError), releasable_disk_reserve(self._store.directory):
                self._table.fail_attempt(*place, self._store.max_physical_offset)
            raise
        return len(unstored.chunk.sizes) - len(refused)

    def _add(self, chunk: ChunkEntry, unstored: UnstoredRows) -> list[str]:
        """Append records of a chunk, and return the reason of each one that was refused.

        Records that were damaged since they were staged are quarantined.
        """
        rows, numbers = unstored.chunk, unstored.numbers
        ends = np.cumsum(rows.sizes, dtype=np.int64)
        topic_queue = rows.topic, rows.queue_id
        refused: list[str] = []

        def append(part: range) -> None:
            begin, end = int(ends[part[0]] - rows.sizes[part[0]]), int(ends[part[-1]])
            self._append_records(rows.records[begin:end], rows.sizes[part.start : part.stop], topic_queue)

        for part, outcome in self._republisher.copy_each(range(len(rows.sizes)), append):
            if isinstance(outcome, CopyRefusal):
                for number in part:
                    self._refuse(self._owner(chunk, numbers[number]), outcome.reason, MessageLocation(*topic_queue))
                refused.extend([outcome.reason] * len(part))
        return refused

    def _lose(self, chunk: ChunkEntry, reason: str) -> None:
        """Report and record that a chunk is unusable."""
        self._refuse(self._owner(chunk), reason)
        self._table.lose(self._transaction, chunk.key, reason)

    def _refuse(self, owner: str, reason: str, place: MessageLocation = _NOWHERE) -> None:
        """Report that some of the rows are not appended."""
        self._republisher.quarantine(CopyPurpose(STAGED, owner), [place], reason)

    def _report_damage(self, damage: DamagedRange) -> None:
        """Report damage in the log searched for rows of the commit."""
        place = MessageLocation(physical_offset=damage.begin, message_id=self._republisher.message_id(damage.begin))
        self._refuse(self._transaction, damage.reason, place)

    def _owner(self, chunk: ChunkEntry, record: int | None = None) -> str:
        """Return the name of a chunk, or of a record in it, for reports."""
        of_chunk = f"chunk {chunk.number} of part {chunk.part}"
        return f"{self._transaction}, {'' if record is None else f'record {record} of '}{of_chunk}"


def restore_barriers(store: Store, transaction: str, decided: CommitDecision, *, with_room: bool) -> None:
    """Restore the read barriers with which a commit was begun.

    They also cover the records that it has appended to topics that were deleted since.
    """
    topics = {topic for topic, _ in decided.ends}
    # Older versions did not store the ids of the topics.
    same = {topic for topic in topics if decided.topic_ids.get(topic, _id_of(store, topic)) == _id_of(store, topic)}
    now = {topic_queue for topic_queue in decided.ends if topic_queue[0] in same and _exists(store, topic_queue[0])}
    store.read_barrier.block(
        transaction,
        {topic_queue: end for topic_queue, end in decided.ends.items() if topic_queue in now},
        with_room=with_room,
    )
    store.read_barrier.block_deleted(
        transaction, {topic_queue: end for topic_queue, end in decided.ends.items() if topic_queue not in now}
    )


def _id_of(store: Store, topic: str) -> str | None:
    """Return the id of the topic that now has this name, or None."""
    config = store.topic_configs.get(topic)
    return None if config is None else config.topic_id


def _exists(store: Store, topic: str) -> bool:
    return topic in UNSENDABLE_TOPICS or store.topic_configs.get(topic) is not None
