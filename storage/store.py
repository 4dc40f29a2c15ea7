"""The facade of one broker's store: a directory of messages, their indexes, settings and consumers' progress.

Thread rule: a store belongs to one thread (the broker's loop), which alone calls its methods; only `flush`,
`flushed_offset`, `sync_settings` and `wait_for_removals` may be used from others at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.age_clock import AgeClock
from raymq.storage.assembly import open_parts
from raymq.storage.checkpointing import Checkpointer
from raymq.storage.clock import wall_ms
from raymq.storage.closing import Closing
from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput, StoreError, StoreFollows, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.ballast import BALLAST_BYTES, Ballast
from raymq.storage.files.descriptors import RESERVE
from raymq.storage.files.room import ROOM
from raymq.storage.followed_state import FollowedState
from raymq.storage.log.checking import Single
from raymq.storage.log.cut_place import check_place
from raymq.storage.log.flush import Flusher
from raymq.storage.log.following import FollowedLog, nothing_follows
from raymq.storage.log.recovery import RecoveryReport
from raymq.storage.log.retention import FILES_A_RUN, Deleted, Disk, Removal, Remover, Retention
from raymq.storage.log.writing import AppendResult, Stored, Writer
from raymq.storage.making_room import open_with_room
from raymq.storage.readable import Readable
from raymq.storage.records.record import Buffer
from raymq.storage.state import queue_ends
from raymq.storage.tables import epoch_starts
from raymq.storage.tables.ordered_cut import OrderedCut
from raymq.storage.tables.remains import Remains
from raymq.storage.topic_deletions import TopicDeletions

__all__ = ["AppendResult", "Store"]

#: Of how many queues one run of `delete_expired` looks at the files.
_QUEUES_A_RUN: Final = 1000


class Store(Readable, Closing):
    """An open store directory; see the module for the thread rule. Use `Store.open`, and `close` or `with`.

    Attributes:
        directory, config: where it is, and its settings (sizes of existing files win over those asked for).
        recovery: what opening found.
        remains: what the log and its queues had then.
        topic_configs, group_configs, request_modes, consumer_offsets, delay_progress, in_flight: kept settings and
            progress.
        delay_tables: which table of delay levels was in force where.
        retention: the rules of `delete_expired`.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        read_only: bool,
        now_ms: Callable[[], int],
        due_from_ms: Callable[[], int] | None,
        elapsed: Callable[[], float] | None,
        follows: bool,
    ) -> None:
        self.directory = directory
        self._read_only = read_only
        self._closed = self._cut_ordered = False
        parts = open_parts(directory, config, read_only=read_only, follows=follows)
        super().__init__(parts)
        self.config = parts.config
        self.recovery: RecoveryReport = parts.recovery
        #: The recovery epoch: another one with every opening that may have found less of the log than was read before.
        self.epoch = parts.epochs.current
        self.remains: Remains = parts.remains
        self.consumer_offsets = parts.progress.consumer_offsets
        self.delay_progress = parts.progress.delay_progress
        self.in_flight = parts.in_flight
        self.topic_configs = parts.topic_configs
        self.group_configs = parts.group_configs
        self.request_modes = parts.request_modes
        #: When log files expire; may be replaced by other rules at any time.
        self.retention = Retention(self.config.retention_hours, self.config.delete_at_hour)
        #: By which files expire. Who only looks has none of his own.
        clock = None if read_only else elapsed
        self._age = AgeClock(parts.paths.clock, now_ms, clock, self._log.last_timestamp_ms)
        self._dispatcher.due_from_ms = due_from_ms
        self.delay_tables = self._dispatcher.delays
        self._ballast = Ballast(parts.paths.ballast)
        self._writer = Writer(directory, self.config, self._log, self._dispatcher, now_ms, self._keep_ballast)
        self._followed = FollowedLog(self._log, self._dispatcher, parts.deleted_topics)
        self._checkpointer = Checkpointer(parts, self._sync_tables, self.confirmed)
        self._remover = Remover(self._checkpointer.under_way)
        self._deletions = TopicDeletions(parts, self._remover, self._checkpointer, self.sync_progress)
        self._dispatcher.settle = self._deletions.sync
        #: What a replica's log goes by; None: the store has its tables itself.
        self._followed_state = FollowedState(parts, self._remover) if follows else None
        self._writer.follows = follows
        self._flusher = Flusher(
            self._log.flush,
            self._save_checkpoint,
            lambda: parts.log.max_offset - parts.log.flushed_offset,
            self.config.flush_interval_ms,
            self.config.flush_least_pages,
        )
        if not read_only:
            RESERVE.fill()
            self._begin_writing()

    def _begin_writing(self) -> None:
        parts = self._parts
        try:
            failpoint("open.before_checkpoint")
            self._save_checkpoint()
            if self._followed_state is None:
                self._deletions.begin()
            self._finish_cut()
            fileutil.remove(parts.paths.rebuild_queues)
            fileutil.remove(queue_ends.aside_of(self.directory))
            self._remover.add([(folder, None) for folder in parts.dispatcher.leftovers])
            if not parts.health.was_good:
                parts.health.certify()
            self.keep_ballast()
            parts.ahead.start()
            parts.dispatcher.start()
            self._flusher.start()
        except BaseException:
            self._flusher.stop()
            parts.close()
            raise

    def _finish_cut(self) -> None:
        """A cut that was ordered is carried out in all that opening has brought to disk: take the order back."""
        parts = self._parts
        if parts.ordered_cut is None:
            return
        self._save_checkpoint()  # the copy of the last state, too, knows nothing behind the cut
        failpoint("cut.before_epochs")
        if parts.ordered_cut.last_epoch is not None:
            for path in parts.paths.master_epochs:
                epoch_starts.cut(path, parts.ordered_cut.last_epoch)
        failpoint("cut.before_done")
        fileutil.remove(parts.paths.ordered_cut)
        failpoint("cut.after_done")

    def keep_ballast(self) -> None:
        """Make the ballast where it is missing and there is room for it: before anything else takes that."""
        self._keep_ballast(Disk.of(self.directory))

    def _keep_ballast(self, disk: Disk) -> None:
        if ROOM.was_given(self.directory):
            return  # who opens may need it for longer
        # The last of a disk that is too full for messages is left to what lets files go.
        if disk.ratio < self.config.disk_refuse_ratio or disk.free >= 2 * BALLAST_BYTES:
            self._ballast.make()
        if self._ballast.is_there:  # else what is left of the disk is needed otherwise
            self._log.prepare_ahead(clean=self.config.flush == "sync")

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: StoreConfig | None = None,
        read_only: bool = False,
        *,
        now_ms: Callable[[], int] = wall_ms,
        due_from_ms: Callable[[], int] | None = None,
        elapsed: Callable[[], float] | None = None,
        retention: Retention | None = None,
        follows: bool = False,
    ) -> Store:
        """Open a directory, new or not, and recover it.

        Args:
            follows: as a replica's (see `follow`), and it stays one. Its tables are not open: settings, progress and
                what is in flight are empty here, and are neither read nor written; `StateReplica` changes their files
                as the master does. Closing it is no end: the next opening, which may be a master's, finds what the
                death of the process would have left.
            read_only: take no lock and write nothing; it shows what is there at this moment, and what a kill has left
                out of queues and index is added in memory alone.
            now_ms: the clock of store times, which never go back, whatever it does.
            due_from_ms: the clock from which messages wait their delay level; None: their store times.
            elapsed: seconds since the machine's start, by which a step of `now_ms` is told from time that has passed:
                files do not expire at once by a clock that was set ahead (`age_clock`). None: they do.
            retention: the rules by which log files go before the store is opened where its disk has no room for that
                (see `making_room`), and in `delete_expired` afterwards. None: none go before, and those of `config`.

        Raises:
            FormatTooNew: a newer RayMQ has written there. StoreLocked: another process or Store of this one has it.
            StoreCorrupt: files of a wrong size or missing between others, settings that cannot be read.
            StoreFull: the disk has no room even for what opening writes, not even with the ballast's and without all
                that may be removed (`making_room`). StoreBusy: no descriptors are left.
            InvalidInput: read-only, and there is no directory.
        """
        path = Path(directory)
        if read_only and not path.is_dir():
            raise InvalidInput("directory", "a store directory", str(path))
        if read_only and follows:
            raise InvalidInput("follows", "a store that may be written", "read-only")
        arguments = path, config or StoreConfig(), read_only, now_ms, due_from_ms, elapsed, follows
        if read_only:
            return cls(*arguments)
        store = open_with_room(path, arguments[1], now_ms, lambda: cls(*arguments), retention)
        store.retention = retention or store.retention
        try:
            store.keep_ballast()
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
        """Store records of any topics and queues, in order; the buffer is copied, never changed.

        Args:
            topic_queues: the only (topic, queue id) that the records may belong to; None = any.
            check_crc: whether the bodies' checksums are compared; False for a caller that has just computed them.
            again: they were made out of stored ones, and `max_message_bytes`, which may be lower by now, is not theirs.

        When it returns, queues and index know them and they survive the death of the process; `flush` makes them
        survive that of the machine. Readers see them once they are `confirmed`.

        Raises:
            InvalidInput: a record is not sound or breaks a limit; nothing was stored.
            StoreFull: the disk is too full. StoreFailed: the disk failed earlier; open the store again.
        """
        if self._closed or self._read_only:
            self._check_open()
        return self._writer.append(records, sizes, topic_queues, check_crc, again)

    def check_one(self, record: Buffer) -> Single:
        """Take one record apart for `append_one`, which needs the record's bytes once more.

        Raises:
            InvalidInput: it is not sound or breaks a limit.
        """
        return self._writer.checker.one(memoryview(record), check_crc=True)

    def append_one(self, single: Single, stored: Stored | None = None) -> tuple[int, int]:
        """`append` for a record that was checked: its queue offset and its physical offset.

        Args:
            stored: told the two as soon as the record survives the death of the process; queue and index, which
                recovery would make anew, come to know it between that and the return. What it raises is passed on.

        Raises:
            StoreFull, StoreFailed: as `append`.
        """
        if self._closed or self._read_only:
            self._check_open()
        return self._writer.append_one(single, stored)

    def check_ready(self) -> None:
        """Raise what an append of whatever records would raise now: StoreFull, StoreFailed."""
        self._check_open()
        self._writer.check_ready()

    def check(self, records: Buffer, sizes: npt.NDArray[np.int32], topic_queue: tuple[str, int]) -> None:
        """Look at records of one queue as `append` would; InvalidInput if it would refuse them."""
        self._writer.check(records, sizes, topic_queue)

    # ---- following a master

    def follow(self, state_changes: Callable[[], int] | None = None, master_begin: int = 0) -> None:
        """Be a replica's from now on: `take_log` appends, and nothing else. Again for each connection to a master.

        Its files of state are looked at where `state_changes`, a count of changes, is another one; None: each time.
        Of topics that were deleted before `master_begin`, where the master's log begins, they tell no more.
        """
        self._check_open()
        self._writer.follows = True
        self._followed.forget_rest()
        if self._followed_state is not None:
            self._followed_state.changes, self._followed_state.master_begin = state_changes, master_begin

    def lead(self) -> None:
        """Be a master's (again): it takes messages. What has come in part of a record is forgotten."""
        self._check_open()
        if self._cut_ordered or self._followed_state is not None:
            actual = "to be cut" if self._cut_ordered else "a replica's: open it anew"
            raise InvalidInput("store", "one that has its tables, without a cut that was ordered", actual)
        self._writer.follows = False
        self._followed.forget_rest()

    def take_log(self, offset: int, content: Buffer, written: Callable[[], None] = nothing_follows) -> None:
        """Append bytes of the master's log, which may end anywhere; the log here grows by whole records.

        `max_physical_offset` says how far it is when this returns, which is what a replica may say that it has; the
        next bytes are those at `received_offset`. What is written survives the death of the process; `written` is
        called then, before queues and index know of it, which recovery would make anew.

        Raises:
            InvalidInput: they do not lie at `received_offset`, or the store does not follow.
            StoreCorrupt: one of the records is not as it was written; it and those behind it are not taken.
            StoreFull, StoreFailed: as `append`. After any error `received_offset` is the log's end.
        """
        self._check_open()
        if not self._writer.follows or self._cut_ordered:
            raise InvalidInput("store", "one that follows", "to be cut" if self._cut_ordered else "a master's")
        self._writer.check_ready(own=False)
        if self._followed_state is not None:
            self._followed_state.look()
        self._followed.take(offset, content, written)

    def order_cut(self, offset: int, last_epoch: int | None = None) -> None:
        """Order that what lies behind `offset` never was; from then on nothing is written: close the store.

        `Store.open` carries it out, in the log and in all that was made of it: queues, index, groups' offsets, delay
        levels, what pop has lent, staged writes, deletions of topics behind it; and epochs of masters newer than
        `last_epoch`. A death at any moment leaves the log as it was, or an order that the next opening carries out.

        Raises:
            InvalidInput: no record begins or ends there. StoreFull: nothing was ordered. StoreFailed: that is unknown.
        """
        self._check_open()
        check_place(self._log, offset)
        failpoint("cut.before_order")
        self._cut_ordered = self._writer.follows = True
        try:
            OrderedCut(offset, last_epoch).save(self._parts.paths.ordered_cut)
        except StoreFull:
            self._cut_ordered = False
            raise
        failpoint("cut.after_order")

    @property
    def received_offset(self) -> int:
        """Up to where bytes of the master's log came; behind the log's end lies the beginning of a record."""
        return self._followed.received

    def _check_open(self) -> None:
        if self._closed or self._read_only:
            raise StoreError("the store is closed" if self._closed else "the store was opened read-only")

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues, what groups were at in them, and its settings; on disk when it returns.

        Its records stay in the log until they expire. If it is written again its offsets begin at 0.
        """
        self.delete_topic_soon(topic)
        self.sync_settings()

    def delete_topic_soon(self, topic: str) -> None:
        """`delete_topic` without waiting for the disk: it is there with the next `sync_settings`.

        Before that a loss of power may bring the topic back, but not if anything was stored in one of that name since.
        """
        self._check_open()
        if self._followed_state is not None:
            raise StoreFollows(f"a replica takes the deletion of {topic} from its master")
        self._writer.check_ready(own=False)
        self._deletions.add(topic)

    def sync_settings(self) -> None:
        """Wait until the changes of topics and groups are on disk; StoreFailed: they may not be. Any thread."""
        self._deletions.sync()
        self.topic_configs.sync()
        self.group_configs.sync()

    def incarnation(self, topic: str) -> int:
        """Rises when a topic of that name is deleted: what is made anew is another topic. 0 if none ever was.

        It is where the log ended then, and forgotten once no record from before that is left.
        """
        return self._deletions.last_of(topic)

    def check_room(self) -> None:
        """Raise what a write would raise: StoreFull while the disk is too full, StoreFailed after it failed."""
        self._check_open()
        self._writer.check_ready()

    def delete_expired(self, *, asked: bool = False, rescue: Callable[[int], int] = lambda log_min: log_min) -> Deleted:
        """Let go of the log files that `retention` says may go, and of queue and index files that follow the log.

        Quick, and to be called every few seconds: a run takes at most ten log files and looks at some queues. What is
        let go of is not there for readers from now on (MessageExpired, OffsetOutOfRange; leases stay valid); a thread
        removes the files from the disk. If the process dies before that they are back, and go later.

        Args:
            asked: expired files go whatever the hour is.
            rescue: told where the log would begin, stores anew what must outlive the files before that place, and
                says up to where there is nothing of that kind (any more); what lies behind stays.
        """
        self._check_open()
        files = self._log.expirable(FILES_A_RUN)
        file_bytes = self._log.files.file_bytes
        newest_ms = [timestamp_ms for _, timestamp_ms in files]
        disk = Disk.of(self.directory)
        self._keep_ballast(disk)
        decision = self.retention.decide(newest_ms, file_bytes, self._age.now_ms(), disk, asked=asked)
        # What was let go of is handed over before anything else may fail: files that go later would leave a gap.
        of_log: list[Removal] = []
        if decision.files:
            failpoint("retention.before_detach")
            with self.room_is_coming():
                end = rescue(files[decision.files - 1][0])
            with self._ballast.at_hand(self.directory):  # a queue may end in these files, and be on disk nowhere else
                end = self._checkpointer.reach(end)
            self._remover.add(of_log := [*self._log.files.detach_before(end)])
        of_queues = self._dispatcher.follow(self._log.min_offset, _QUEUES_A_RUN)
        failpoint("retention.before_add")
        self._remover.add(of_queues)
        self._remover.add(of_index := self._dispatcher.index.detach_before(self._log.min_offset))
        return Deleted(len(of_log), len(of_queues), len(of_index), decision.reason)

    def leaving_before(self) -> int:
        """Where the log will begin when `retention` has run for the next time, if the disk is not too full by then.

        So what is to outlive files may be stored anew ahead of it, little by little.
        """
        return self._log.expired_to(self.retention.next_oldest_ms(self._age.now_ms()))

    def room_is_coming(self) -> AbstractContextManager[None]:
        """In it one writes although the disk is fuller than it may be: what is written lets files go."""
        return self._writer.room_is_coming()

    def wait_for_removals(self, timeout: float | None = None) -> bool:
        """Wait until what `delete_expired` let go of is off the disk; False after `timeout` seconds. Any thread."""
        return self._remover.wait(timeout)

    # ---- durability

    @property
    def flushed_offset(self) -> int:
        """The log up to here survives the death of the machine. Any thread."""
        return self._log.flushed_offset

    def flush(self) -> None:
        """Wait until all that was appended before the call is on disk. Any thread; the GIL is free meanwhile.

        Raises:
            StoreFailed: the disk failed; the store refuses writes from now on.
        """
        self._log.flush()

    def sync_progress(self) -> None:
        """Wait until what groups, delay levels and pop have come to is on disk; StoreFailed if it may not be."""
        # In this order: an offset that is behind what is out was moved back, for all that a start knows.
        self.in_flight.sync()
        self._parts.progress.journal.sync()

    def _sync_tables(self) -> None:
        self.sync_progress()
        self.sync_settings()

    def _save_checkpoint(self) -> None:
        """See `Checkpointer.save`."""
        self._checkpointer.save()

    def close(self) -> None:
        """Stop properly: all is on disk, the next opening is clean. Leases stay valid. May be called again.

        After a failure of the disk the directory is left as one that was not closed.
        """
        if self._closed:
            return
        self._closed = True
        self._flusher.stop()
        self._remover.stop()
        try:
            if not self._read_only and self._parts.health.good:
                failpoint("close.before_fold")
                self._log.flush()  # then all that the levels have delivered is sure, and folded
                self._parts.progress.close(fold=True)
                self.in_flight.close(rewrite=True)
                for table in (self.topic_configs, self.group_configs):
                    table.save()
                failpoint("close.before_checkpoint")
                self._save_checkpoint()
                failpoint("close.before_abort")
                if self._followed_state is None:
                    fileutil.remove(self._parts.paths.abort)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Let go of files, threads and lock, and leave the rest as it is."""
        self._parts.close()
