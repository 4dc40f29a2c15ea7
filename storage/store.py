"""The facade of one broker's store: messages, indexes, settings and consumer offsets in one directory.

Thread rule: a store belongs to one thread (the broker's loop), and only that thread calls its methods. Exceptions are
`flush`, `flushed_offset`, `sync_state` and `wait_for_removals`, which other threads may use at the same time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.checkpointer import Checkpointer
from raymq.storage.clock import wall_ms
from raymq.storage.closeable import Closeable
from raymq.storage.config import StoreConfig
from raymq.storage.emergency_cleaner import open_with_cleanup
from raymq.storage.errors import InvalidInput, StoreError, StoreFollows, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE
from raymq.storage.files.disk_reserve import DISK_RESERVE_BYTES, DiskReserve
from raymq.storage.files.enospc_fallback import ENOSPC_FALLBACK
from raymq.storage.histogram import Histogram
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.log.background_flusher import Flusher
from raymq.storage.log.message_writer import AppendResult, MessageWriter
from raymq.storage.log.record_checker import CheckedRecord, check_topic_queues
from raymq.storage.log.recovery import RecoveryReport
from raymq.storage.log.replica_log import ReplicaLog, ignore_written
from raymq.storage.log.retention import MAX_FILES_PER_RUN, DiskUsage, FileRemover, Removal, Retention, RetentionResult
from raymq.storage.log.truncation_point import check_truncation_point
from raymq.storage.records.record import Buffer
from raymq.storage.retention_clock import RetentionClock
from raymq.storage.store_parts import open_parts
from raymq.storage.store_reader import StoreReader
from raymq.storage.tables import leader_epoch_checkpoint
from raymq.storage.tables.pending_truncation import PendingTruncation
from raymq.storage.topic_deletions import TopicDeletions

__all__ = ["AppendResult", "Store"]

#: The number of queues whose files one run of `delete_expired` checks.
_QUEUES_A_RUN: Final = 1000


class Store(StoreReader, Closeable):
    """An open store directory. Open it with `Store.open`, and use `close` or `with`.

    The module docstring has the thread rule.

    Attributes:
        directory, config: its path, and its settings (sizes of existing files take precedence over the requested ones).
        recovery: what recovery found when the store was opened.
        recovery_bounds: the ends of the log and its queues at that time.
        topic_configs, group_configs, request_modes, consumer_offsets, delay_offsets, in_flight: stored settings,
            offsets and unacknowledged deliveries.
        tables: the other tables of the state journal.
        journal: the state journal; replicas get its events.
        delay_level_history: which table of delay levels was in force in which part of the log.
        retention: the rules of `delete_expired`.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        read_only: bool,
        now_ms: Callable[[], int],
        delay_clock_ms: Callable[[], int] | None,
        elapsed: Callable[[], float] | None,
        is_replica: bool,
    ) -> None:
        self.directory = directory
        self._read_only = read_only
        self._closed = self._truncation_ordered = False
        parts = open_parts(directory, config, read_only=read_only, is_replica=is_replica)
        super().__init__(parts)
        self.config = parts.config
        self.recovery: RecoveryReport = parts.recovery
        self.recovery_bounds: RecoveryBounds = parts.recovery_bounds
        self.tables = tables = parts.tables
        self.journal: StateJournal = parts.journal
        self.consumer_offsets = tables.consumer_offsets
        self.delay_offsets = tables.delay_offsets
        self.in_flight = tables.in_flight
        self.topic_configs = tables.topics
        self.group_configs = tables.groups
        self.request_modes = tables.request_modes
        #: The rules by which log files expire; may be replaced at any time.
        self.retention = Retention(self.config.retention_hours, self.config.delete_at_hour)
        # A read-only store deletes nothing, and saves no clock.
        clock = None if read_only else elapsed
        self._age = RetentionClock(now_ms, clock, self._log.last_timestamp_ms, parts.boot_ms)
        self._dispatcher.delay_clock_ms = delay_clock_ms
        self.delay_level_history = tables.delay_levels
        self._disk_reserve = DiskReserve(parts.paths.disk_reserve)
        self._writer = MessageWriter(
            directory, self.config, self._log, self._dispatcher, now_ms, self._keep_disk_reserve
        )
        self._replica_log = ReplicaLog(self._log, self._dispatcher, parts.deleted_topics)
        self._checkpointer = Checkpointer(parts, self.sync_state, self.confirmed, self._age)
        self._remover = FileRemover(self._checkpointer.saving_lock)
        self._deletions = TopicDeletions(parts, self._remover, self._checkpointer)
        self._dispatcher.sync_deletions = self._deletions.sync
        self._writer.is_replica = is_replica
        #: How long flushes took.
        self.flush_seconds = Histogram()
        self._flusher = Flusher(
            self.flush,
            self._save_checkpoint,
            lambda: parts.log.max_offset - parts.log.flushed_offset,
            self.config.flush_interval_ms,
            self.config.flush_least_pages,
        )
        if not read_only:
            DESCRIPTOR_RESERVE.fill()
            self._begin_writing()

    def _begin_writing(self) -> None:
        parts = self._parts
        try:
            failpoint("open.before_checkpoint")
            self._save_checkpoint()
            self._finish_cut()
            fileutil.remove(parts.paths.rebuild_queues)
            fileutil.remove(parts.paths.expired_queues)
            self._remover.add([(folder, None) for folder in parts.dispatcher.leftovers])
            if not parts.health.was_healthy:
                parts.health.certify()
            self.keep_disk_reserve()
            parts.ahead.start()
            parts.dispatcher.start()
            self._flusher.start()
        except BaseException:
            self._flusher.stop()
            parts.close()
            raise

    def _finish_cut(self) -> None:
        """Finish an ordered truncation after opening has applied it, and remove the order."""
        parts = self._parts
        if parts.ordered_cut is None:
            return
        self._save_checkpoint()  # so that the copy of the previous state has nothing after the truncation point, either
        failpoint("truncation.before_epochs")
        if parts.ordered_cut.last_epoch is not None:
            for path in parts.paths.master_epochs:
                leader_epoch_checkpoint.cut(path, parts.ordered_cut.last_epoch)
        failpoint("truncation.before_done")
        fileutil.remove(parts.paths.ordered_cut)
        failpoint("truncation.after_done")

    def keep_disk_reserve(self) -> None:
        """Create the disk reserve file if it is missing and there is room for it.

        Call it before anything else takes that room.
        """
        self._keep_disk_reserve(DiskUsage.of(self.directory))

    def _keep_disk_reserve(self, disk: DiskUsage) -> None:
        if ENOSPC_FALLBACK.was_released(self.directory):
            return  # the opening that is under way may need the room for longer
        # On a disk that is too full for messages the last free space is left to retention.
        if disk.ratio < self.config.disk_refuse_ratio or disk.free >= 2 * DISK_RESERVE_BYTES:
            self._disk_reserve.make()
        if self._disk_reserve.exists:  # else the little free space is needed for other files
            self._log.prepare_ahead(clean=self.config.flush == "sync")

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: StoreConfig | None = None,
        read_only: bool = False,
        *,
        now_ms: Callable[[], int] = wall_ms,
        delay_clock_ms: Callable[[], int] | None = None,
        elapsed: Callable[[], float] | None = None,
        retention: Retention | None = None,
        is_replica: bool = False,
    ) -> Store:
        """Open a directory, new or not, and recover it.

        Args:
            is_replica: open it as a replica's (see `follow`). Only its master changes the tables (`append_events`), so
                they are not clamped to the log before `become_leader`. Closing it does not count as a clean shutdown.
            read_only: take no lock and write nothing. The store shows the content of this moment; entries that a crash
                left out of queues and index are added in memory only.
            now_ms: the clock of store times; store times never go back, even if the clock does.
            delay_clock_ms: the clock from which messages wait their delay level; None: they wait from their store
                times.
            elapsed: returns the seconds since the machine's start, which distinguish a step of `now_ms` from time that
                has passed: files do not expire at once if the clock is set ahead (`retention_clock`). None: they do.
            retention: the rules by which log files are removed before the opening if the disk has no room for it (see
                `emergency_cleaner`), and in `delete_expired` afterwards. None: no log file is removed before the
                opening, and `delete_expired` uses the rules of `config`.

        Raises:
            FormatTooNew: a newer RayMQ has written there.
            StoreLocked: another process or another Store of this process has the directory open.
            StoreCorrupt: files have a wrong size or are missing between others, or settings cannot be read.
            StoreFull: the disk has no room for the writes of an opening, not even with the disk reserve and after
                removing everything that may be removed (`emergency_cleaner`).
            StoreBusy: no file descriptors are left.
            InvalidInput: `read_only` is set and the directory does not exist.
        """
        path = Path(directory)
        if read_only and not path.is_dir():
            raise InvalidInput("directory", "a store directory", str(path))
        if read_only and is_replica:
            raise InvalidInput("follows", "a store that may be written", "read-only")
        arguments = path, config or StoreConfig(), read_only, now_ms, delay_clock_ms, elapsed, is_replica
        if read_only:
            return cls(*arguments)
        store = open_with_cleanup(path, arguments[1], now_ms, lambda: cls(*arguments), lambda: retention)
        store.retention = retention or store.retention
        try:
            store.keep_disk_reserve()
        except BaseException:
            store.close()
            raise
        return store

    # ---- writing

    def append(
        self,
        records: Buffer,
        sizes: npt.NDArray[np.int32],
        *,
        topic_queues: Collection[tuple[str, int]] | None = None,
        check_crc: bool = True,
        again: bool = False,
    ) -> AppendResult:
        """Store records of any topics and queues, in order.

        The buffer is copied, never changed. When the call returns, queues and index have the records and they survive a
        crash of the process; `flush` makes them survive a crash of the machine. Readers see them once they are
        `confirmed`.

        Args:
            topic_queues: the only (topic, queue id) pairs that the records may belong to; None = any.
            check_crc: whether the checksums of the bodies are compared; False for a caller that has just computed them.
            again: the records were made from stored ones, so that `max_message_bytes`, which may be lower by now, does
                not apply.

        Raises:
            InvalidInput: a record is malformed or breaks a limit; nothing was stored.
            StoreFull: the disk is too full.
            StoreFailed: the disk failed earlier; open the store again.
        """
        if self._closed or self._read_only:
            self._check_open()
        writer = self._writer
        checked = writer.check(records, sizes, check_crc=check_crc, again=again)
        if topic_queues is not None:
            check_topic_queues(checked, topic_queues)
        return writer.append(records, checked)

    def check_one(self, record: Buffer) -> CheckedRecord:
        """Parse and check one record for `write`, which also needs the record's bytes.

        Raises:
            InvalidInput: the record is malformed or breaks a limit.
        """
        return self._writer.checker.one(memoryview(record), check_crc=True)

    def write(self, single: CheckedRecord) -> tuple[int, int]:
        """Write a checked record to the log; return queue and physical offset.

        The record survives a crash of the process. `dispatch` has to follow; other appends do it if it does not.

        Raises:
            StoreFull, StoreFailed: as `append`.
        """
        if self._closed or self._read_only:
            self._check_open()
        queue_offsets, physical_offsets = self._writer.write(single.record, (single,))
        return queue_offsets[0], physical_offsets[0]

    def dispatch(self) -> bool:
        """Write the entries of a written record into queue and index, which recovery would rebuild.

        Return False if nothing was written. Raise WriteUnknown if it fails.
        """
        return self._writer.dispatch()

    def check_ready(self) -> None:
        """Raise StoreFull or StoreFailed if any append would raise it now."""
        self._check_open()
        self._writer.check_ready()

    def check(self, records: Buffer, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> None:
        """Raise InvalidInput if `append` would refuse these records of one queue."""
        check_topic_queues(self._writer.check(records, sizes), (topic_queue,))

    # ---- following a master

    def use_delay_clock(self, now_ms: Callable[[], int]) -> None:
        """Let new messages wait their delay level from the times of this clock; see `open`."""
        self._dispatcher.delay_clock_ms = now_ms

    def follow(self) -> None:
        """Become a replica's store: from now on only `append_replicated` and `append_events` append.

        Call it again for each connection to a master.
        """
        self._check_open()
        self._writer.is_replica = True
        self._replica_log.discard_partial()

    def become_leader(self, *, memory_lost: bool = False) -> None:
        """Become a master's store (again), which takes messages; drop a partially received record.

        What refers to log that this store lacks is removed from the tables, by events of its own.

        Args:
            memory_lost: as `RecoveryBounds.memory_lost`, also for earlier openings than this one.

        Raises:
            InvalidInput: a truncation is ordered.
            StoreFull, StoreFailed: it stays a replica's.
        """
        self._check_open()
        if self._truncation_ordered:
            raise InvalidInput("store", "a store without an ordered truncation", "one to be truncated")
        parts = self._parts
        self._deletions.follow()
        parts.begin_leading(memory_lost=memory_lost or parts.recovery_bounds.memory_lost)
        self.recovery_bounds = parts.recovery_bounds
        self._writer.is_replica = False
        self._replica_log.discard_partial()

    def append_events(self, events: Sequence[JournalEvent]) -> None:
        """Append the next events of the master's state journal, and apply them to the tables.

        Written events survive a crash of the process, and a crash of the machine after the next `sync_state`.

        Raises:
            InvalidInput: the first one is not the next one, or the store is not a replica's.
            StateMismatch: an event is malformed.
            StoreFull, StoreFailed: as `StateJournal.append_shipped`; the queues of a deleted topic may remain until the
                next call.
        """
        self._check_follows()
        self.journal.append_shipped(events)
        self._deletions.follow()

    def record_loss(self, log_end: int, election: int) -> bool:
        """Begin a recovery epoch at `log_end`, durably, once per lossy election.

        Readers may have seen more than `log_end`. Call it before the store has readers.

        Args:
            election: the newest election after which records may be missing; 0: none.

        Returns:
            whether this call began it; False if that was done before.

        Raises:
            StoreFull, StoreFailed: nothing may have been recorded; another call does it.
        """
        self._check_open()
        epochs = self._parts.tables.recovery_epochs
        if epochs.election >= election:
            return False
        epochs.cut(log_end, election)
        return True

    def append_replicated(self, offset: int, content: Buffer, written: Callable[[], None] = ignore_written) -> None:
        """Append bytes of the master's log; the local log grows by whole records.

        The bytes may end anywhere. When the call returns, `max_physical_offset` is the end of the local log, which the
        replica may report to the master; the next bytes have to begin at `received_offset`. Written records survive a
        crash of the process; then `written` is called, before queues and index have the entries, which recovery would
        rebuild.

        Raises:
            InvalidInput: the bytes do not begin at `received_offset`, or the store is not a replica's.
            StoreCorrupt: a record is damaged; this record and the following ones are not appended.
            StoreFull, StoreFailed: as `append`. After any error `received_offset` is the log's end.
        """
        self._check_follows()
        self._writer.check_ready(own=False)
        self._deletions.follow()
        self._replica_log.take(offset, content, written)

    def _check_follows(self) -> None:
        self._check_open()
        if not self._writer.is_replica or self._truncation_ordered:
            raise InvalidInput(
                "store", "a replica's", "one to be truncated" if self._truncation_ordered else "a master's"
            )

    def order_truncation(self, offset: int, last_epoch: int | None = None) -> None:
        """Order a truncation of the log at `offset`; close the store afterwards.

        Nothing is written to the store from now on. `Store.open` carries the order out, in the log and in everything
        derived from it: queues, index, and, unless a replica's store is opened, the tables; and it removes the leader
        epochs newer than `last_epoch`. A crash at any moment leaves either the log as it was, or an order that the next
        opening carries out.

        Raises:
            InvalidInput: no record begins or ends at `offset`.
            StoreFull: nothing was ordered.
            StoreFailed: it is unknown whether the order was written.
        """
        self._check_open()
        check_truncation_point(self._log, offset)
        failpoint("truncation.before_order")
        self._truncation_ordered = self._writer.is_replica = True
        try:
            PendingTruncation(offset, last_epoch).save(self._parts.paths.ordered_cut)
        except StoreFull:
            self._truncation_ordered = False
            raise
        failpoint("truncation.after_order")

    @property
    def received_offset(self) -> int:
        """Return up to which offset bytes of the master's log were received.

        The bytes after the log's end are the beginning of a record.
        """
        return self._replica_log.received

    def _check_open(self) -> None:
        if self._closed or self._read_only:
            raise StoreError("the store is closed" if self._closed else "the store was opened read-only")

    def delete_topic(self, topic: str) -> None:
        """Delete the topic's queues, its groups' offsets and its settings, durably.

        Its records stay in the log until they expire. If the topic is written again, its offsets begin at 0.
        """
        self.delete_topic_soon(topic)
        self.sync_state()

    def delete_topic_soon(self, topic: str) -> None:
        """Delete a topic as `delete_topic` does, without waiting for the disk.

        The deletion is on disk after the next `sync_state`. Before that a power loss may bring the topic back, but
        not if a message was stored in a topic of that name since.
        """
        self._check_open()
        if self._writer.is_replica:
            raise StoreFollows(f"a replica takes the deletion of topic {topic} from its master")
        self._writer.check_ready(own=False)
        self._deletions.add(topic)

    def incarnation(self, topic: str) -> int:
        """Return a number that rises when a topic of that name is deleted.

        A recreated topic is another topic. The number is the log's end at the last deletion. It is 0 if no such topic
        was ever deleted, or so long ago that the deletion is forgotten.
        """
        return self._deletions.last_of(topic)

    def check_room(self) -> None:
        """Raise the error of a write: StoreFull on a full disk, StoreFailed after a failure."""
        self._check_open()
        self._writer.check_ready()

    def delete_expired(
        self, *, asked: bool = False, rescue: Callable[[int], int] = lambda log_min: log_min
    ) -> RetentionResult:
        """Remove the log files that `retention` expires, and dependent queue and index files.

        The call is quick and meant for every few seconds: a run takes at most ten log files and checks some of the
        queues. Removed data is no longer visible to readers (MessageExpired, OffsetOutOfRange; leases stay valid); a
        thread removes the files from the disk. If the process crashes before that, the files are back at the next
        opening and are removed later.

        Args:
            asked: expired files are removed at any hour.
            rescue: called with the offset at which the log would begin. It appends data again that has to outlive the
                files before that offset, and returns the offset before which no such data is left; files after it stay.
        """
        self._check_open()
        files = self._log.expirable(MAX_FILES_PER_RUN)
        file_bytes = self._log.files.file_bytes
        newest_ms = [timestamp_ms for _, timestamp_ms in files]
        disk = DiskUsage.of(self.directory)
        self._keep_disk_reserve(disk)
        decision = self.retention.decide(newest_ms, file_bytes, self._age.now_ms(), disk, asked=asked)
        # Queue detached files for removal before anything can fail: later files removed first would leave a gap.
        of_log: list[Removal] = []
        if decision.files:
            failpoint("retention.before_detach")
            with self.bypass_disk_limit():
                end = rescue(files[decision.files - 1][0])
            with self._disk_reserve.releasable_for(
                self.directory
            ):  # these files may have the only durable data from which the end of a queue can be rebuilt
                end = self._checkpointer.checkpoint_up_to(end)
            self._remover.add(of_log := [*self._log.files.detach_before(end)])
        of_queues = self._dispatcher.follow(self._log.min_offset, _QUEUES_A_RUN)
        failpoint("retention.before_add")
        self._remover.add(of_queues)
        self._remover.add(of_index := self._dispatcher.index.detach_before(self._log.min_offset))
        return RetentionResult(len(of_log), len(of_queues), len(of_index), decision.reason)

    def next_expiry_offset(self) -> int:
        """Return the offset at which the log will begin after the next run of `retention`.

        This assumes that the disk is not too full by then. So data that has to outlive files can be appended again
        ahead of that run, little by little.
        """
        return self._log.expiry_offset(self.retention.next_oldest_ms(self._age.now_ms()))

    def bypass_disk_limit(self) -> AbstractContextManager[None]:
        """Allow writes in a `with` although the disk is above its limit.

        It is meant for writes that allow files to be removed.
        """
        return self._writer.bypass_disk_limit()

    def wait_for_removals(self, timeout: float | None = None) -> bool:
        """Wait until the files that `delete_expired` released are removed from disk. Any thread.

        Return False after `timeout` seconds.
        """
        return self._remover.wait(timeout)

    # ---- durability

    @property
    def flushed_offset(self) -> int:
        """Return the log offset up to which data survives a machine crash. Any thread."""
        return self._log.flushed_offset

    def flush(self) -> None:
        """Wait until everything appended before the call is on disk. Any thread.

        The GIL is released meanwhile.

        Raises:
            StoreFailed: the disk failed; the store refuses writes from now on.
        """
        began = time.monotonic()
        self._log.flush()
        self.flush_seconds.observe(time.monotonic() - began)

    def sync_state(self) -> None:
        """Wait until all changes of the tables and all deletions are on disk. Any thread.

        Raise StoreFailed if they may not be.
        """
        self._parts.journal.sync()
        self._deletions.sync()

    @property
    def has_unsynced_deletions(self) -> bool:
        """Return True if deletions of topics wait for `sync_state`."""
        return self._deletions.has_unsynced

    def begin_export(self) -> Callable[[], None]:
        """Return a function that writes RocketMQ's files of the tables that have changed.

        Any thread may call the function, one at a time. It raises StoreFull or StoreFailed if it did not write all.
        """
        self._check_open()
        return self._parts.rocketmq_files.begin_export()

    def _save_checkpoint(self) -> None:
        """See `Checkpointer.save`."""
        self._checkpointer.save()

    def close(self) -> None:
        """Close the store cleanly: everything is on disk, and the next opening is clean.

        Leases stay valid. May be called again. After a failure of the disk the directory is left as after a crash.
        """
        if self._closed:
            return
        self._closed = True
        self._flusher.stop()
        self._remover.stop()
        try:
            if not self._read_only and self._parts.health.is_healthy:
                failpoint("close.before_compaction")
                self._log.flush()  # then all deliveries of the delay levels are durable, and their offsets are settled
                self._close_journal()
                failpoint("close.before_checkpoint")
                self._save_checkpoint()
                failpoint("close.before_abort")
                if not self._writer.is_replica:
                    fileutil.remove(self._parts.paths.abort)
        finally:
            self._abandon()

    def _close_journal(self) -> None:
        """Bring the tables to disk, also to RocketMQ's files, and compact the journal."""
        journal, files = self.journal, self._parts.rocketmq_files
        journal.sync()  # RocketMQ's files must not be newer
        is_replica = self._writer.is_replica
        # What RocketMQ has written into a replica's files is read when the replica becomes the master.
        if journal.has_events and not (is_replica and files.foreign_events(has_tables=True)):
            files.begin_export()()
        journal.close(compact=not (is_replica and journal.is_lossy))

    def _abandon(self) -> None:
        """Release files, threads and lock without writing anything."""
        self._parts.close()
