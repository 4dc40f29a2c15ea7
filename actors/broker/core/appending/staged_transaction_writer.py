"""Stage the writes of one broker: records of many tasks become visible together.

They are invisible until their coordinator has decided to commit the write, and `staged_commit` has appended them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending import staged_folders
from raymq.actors.broker.core.appending.staged_chunk_log import StagedChunkLog
from raymq.actors.broker.core.appending.staged_commit import StagedCommit, restore_barriers
from raymq.actors.broker.core.copies.record_copy import RecordAppender
from raymq.actors.broker.core.copies.republisher import Republisher
from raymq.actors.broker.core.writes.in_doubt_tracker import InDoubtTracker
from raymq.actors.naming import UNSENDABLE_TOPICS
from raymq.storage.failpoints import failpoint
from raymq.storage.store import Store
from raymq.storage.tables.staged_chunk import ChunkEntry, chunk_name, encode_chunk
from raymq.storage.tables.staged_records import COMMITTED, FINISHED_MARK_SECONDS


class StagedTransactionWriter:
    """The staged writes of one broker; `elapsed` is seconds that never go back."""

    def __init__(
        self,
        store: Store,
        append: RecordAppender,
        republisher: Republisher,
        arrived: Callable[[Sequence[tuple[str, int]]], None],
        elapsed: Callable[[], float],
    ) -> None:
        """Restore the writes before the last stop.

        `arrived` is called with the queues whose readable end moved.
        """
        self._store = store
        self._append = append
        self._republisher = republisher
        self._arrived = arrived
        self._elapsed = elapsed
        self.table = store.tables.staged
        self.chunks = StagedChunkLog(store, self.table, append)
        #: The writes to query at, or to report to, their coordinators.
        self.in_doubt = InDoubtTracker(elapsed)
        #: When each finished transaction ended whose mark is still kept.
        self._over: dict[str, float] = {}
        staged_folders.convert(store, self.table, self.chunks)
        for each in self.table.transactions():
            if each.commit is not None:
                restore_barriers(store, each.name, each.commit, with_room=False)
            if each.over is not None:
                self._over[each.name] = elapsed()
            if each.over == COMMITTED and each.coordinator:
                self.in_doubt.mark_done(each.name, each.coordinator)
            elif each.over is None and each.coordinator:
                self.in_doubt.recover(each.name, each.coordinator)
            elif each.commit is None:  # without a coordinator it will never be decided
                self._over.setdefault(each.name, elapsed())

    def append_chunk(
        self,
        transaction: str,
        part: str,
        number: int,
        topic_queue: tuple[str, int],
        records: memoryview,
        sizes: npt.NDArray[np.int32],
        coordinator: str,
    ) -> ChunkEntry:
        """Append a chunk of `topic_queue`'s records, invisible; `record_chunk` has to follow.

        Args:
            coordinator: the broker that coordinates the transaction.

        Raises:
            InvalidInput: a record is invalid, or the transaction is decided; nothing is stored.
            StoreFull: the disk is too full for an append, too. StoreFailed.
        """
        self._store.check_room()
        self._store.check(records, sizes, topic_queue)
        self.table.check_open(transaction, part, number, coordinator)
        topic, queue_id = topic_queue
        config = None if topic in UNSENDABLE_TOPICS else self._store.topic_configs.get(topic)
        if coordinator:  # before the rows are stored, so that none are stored without a query about them
            self.in_doubt.touch(transaction, coordinator)
        content = encode_chunk(topic_queue, records, sizes)
        incarnation, topic_id = self._store.incarnation(topic), None if config is None else config.topic_id
        places = self.chunks.append(chunk_name(transaction, part, number), content)
        return ChunkEntry(part, number, topic, queue_id, len(sizes), incarnation, topic_id, places)

    def record_chunk(self, transaction: str, coordinator: str, chunk: ChunkEntry) -> None:
        """Bring an appended chunk to disk and record it. Any thread. Raise as `append_chunk`."""
        self._store.flush()  # the table never names records that a loss of power could take
        failpoint("staged.before_chunk")
        self.table.add(transaction, coordinator, chunk)

    def open_commit(self, transaction: str, parts: Collection[str], rows: int | None) -> StagedCommit:
        """Return the commit of a transaction's parts, which have so many rows here."""
        return StagedCommit(self._store, self.chunks, self._append, self._republisher, transaction, parts, rows)

    def roll_back(self, transaction: str) -> None:
        """Remove the read barriers of a commit whose decision could not be stored.

        Nothing of the commit is in the log. If the decision was stored after all, the barriers stay, because they would
        return at the same offsets.
        """
        if self.table.decided(transaction) is None:
            self._unblock_readers(transaction)

    def show(self, transaction: str) -> None:
        """Make a transaction visible that is closed in the table."""
        coordinator = self.table.coordinator_of(transaction)
        if coordinator is not None and transaction not in self._over:
            self.in_doubt.mark_done(transaction, coordinator)
        self._end(transaction)

    def stop_tracking(self, transaction: str) -> None:
        """Do the rest of an abort, after the table's."""
        if self.table.is_committed(transaction):
            self.in_doubt.mark_closed(transaction)
        elif self.table.decided(transaction) is None:
            self._end(transaction)
            self.in_doubt.forget(transaction)

    def sweep(self) -> None:
        """Forget the transactions that were finished long ago."""
        limit = self._elapsed() - FINISHED_MARK_SECONDS
        for name, ended in list(self._over.items()):
            if ended <= limit and self.in_doubt.is_notified(name):
                self.table.remove(name)
                del self._over[name]

    def _end(self, transaction: str) -> None:
        self._over.setdefault(transaction, self._elapsed())
        self._unblock_readers(transaction)

    def _unblock_readers(self, transaction: str) -> None:
        topic_queues = self._store.read_barrier.unblock(transaction)
        if topic_queues:
            self._arrived(topic_queues)
