"""The facade of one broker's store: a directory of messages, their indexes, settings and consumers' progress.

Thread rule: a store belongs to one thread (the broker's loop), which alone calls its methods; only `flush`,
`flushed_offset`, `sync_settings` and `wait_for_removals` may be used from others at the same time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import numpy as np
import numpy.typing as npt

from raymq.storage import paths as layout_of
from raymq.storage.assembly import open_parts
from raymq.storage.clock import boot_id, wall_ms
from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput, QueueNotFound, StoreBusy, StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.ballast import BALLAST_BYTES, Ballast
from raymq.storage.files.descriptors import RESERVE
from raymq.storage.files.room import ROOM
from raymq.storage.log.checking import Single
from raymq.storage.log.checkpoint import TAKEN_BACK, Checkpoint, State
from raymq.storage.log.confirm_point import ConfirmPoint
from raymq.storage.log.flush import Flusher
from raymq.storage.log.lease import Lease
from raymq.storage.log.queue_repair import QueueRepair
from raymq.storage.log.reading import Reader, check_offset
from raymq.storage.log.recovery import RecoveryReport
from raymq.storage.log.retention import FILES_A_RUN, Deleted, Disk, Removal, Remover, Retention
from raymq.storage.log.writing import AppendResult, Stored, Writer
from raymq.storage.making_room import open_with_room
from raymq.storage.records.record import Buffer, Record
from raymq.storage.steps import Steps, finish
from raymq.storage.tables.remains import Remains

__all__ = ["AppendResult", "Store"]

#: Of how many queues one run of `delete_expired` looks at the files.
_QUEUES_A_RUN: Final = 1000
#: A shorter journal of deletions is not written anew.
_LEAST_DELETIONS_BYTES: Final = 64 << 10


class Store:
    """An open store directory; see the module for the thread rule. Use `Store.open`, and `close` or `with`.

    Attributes:
        directory, config: where it is, and its settings (sizes of existing files win over those asked for).
        recovery: what opening found.
        remains: what the log and its queues had then.
        topic_configs, group_configs, request_modes, consumer_offsets, delay_progress, in_flight: kept settings and
            progress.
        delay_tables: which table of delay levels was in force where.
        retention: the rules of `delete_expired`.
        confirmed: up to where the log is confirmed. All that reads ends there; where a method takes `written`, the
            broker's own duties may also see what was appended and is not confirmed, never a consumer.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        read_only: bool,
        now_ms: Callable[[], int],
        due_from_ms: Callable[[], int] | None,
    ) -> None:
        self.directory = directory
        self._read_only = read_only
        self._closed = False
        self._now_ms = now_ms
        self._parts = parts = open_parts(directory, config, read_only=read_only)
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
        self._log = log = parts.log
        self._dispatcher = parts.dispatcher
        self._dispatcher.due_from_ms = due_from_ms
        self.delay_tables = self._dispatcher.delays
        #: What readers may see.
        self.confirmed = ConfirmPoint(log, durable=self.config.flush == "sync")
        repair = QueueRepair(log, self._dispatcher, parts.deleted_topics)
        self._reader = Reader(log, self._dispatcher, repair, self.confirmed)
        self._ballast = Ballast(parts.paths.ballast)
        self._writer = Writer(directory, self.config, log, self._dispatcher, now_ms, self._keep_ballast)
        self._checkpointing = threading.Lock()
        self._settling, self._deleting = threading.Lock(), threading.Lock()
        self._deleted_count = 0
        self._dispatcher.settle = self._sync_deletions
        #: `State.dispatched_to` of the last checkpoint.
        self._saved_to = 0
        self._shorten_at = _LEAST_DELETIONS_BYTES
        #: Deletions up to these places are not told by the newest state, by the settled journal of deletions,
        #: and by both of them: no start will ask whether a table knows of these.
        self._state_tells_from = self._settled_tells_from = self._untold_before = 0
        self._remover = Remover(self._checkpointing)
        self._flusher = Flusher(
            log.flush,
            self._save_checkpoint,
            lambda: log.max_offset - log.flushed_offset,
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
            self._keep_deletions()
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

    def _keep_deletions(self) -> None:
        """Have the journal tell of all deletions that count; the state does so, too, but one of them may be damaged."""
        log_min, deletions = self._log.min_offset, self._parts.deletions
        told = [(topic, end) for topic, end in self._parts.deleted_topics.items() if end > log_min]
        if list(deletions.entries) != told:
            deletions.rewrite(told)
        deletions.entries.clear()
        self._shorten_at = max(_LEAST_DELETIONS_BYTES, 2 * deletions.length)

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
        retention: Retention | None = None,
    ) -> Store:
        """Open a directory, new or not, and recover it.

        Args:
            read_only: take no lock and write nothing; it shows what is there at this moment, and what a kill has left
                out of queues and index is added in memory alone.
            now_ms: the clock of store times, which never go back, whatever it does.
            due_from_ms: the clock from which messages wait their delay level; None: their store times.
            retention: the rules by which log files go before the store is opened where its disk has no room for that
                (see `making_room`), and in `delete_expired` afterwards. None: none go before, and those of `config`.

        Raises:
            StoreLocked: another process or another Store of this one has it.
            StoreCorrupt: files of a wrong size or missing between others, settings that cannot be read.
            StoreFull: the disk has no room even for what opening writes, not even with the ballast's and without all
                that may be removed (`making_room`). StoreBusy: no descriptors are left.
            InvalidInput: read-only, and there is no directory.
        """
        path = Path(directory)
        if read_only and not path.is_dir():
            raise InvalidInput("directory", "a store directory", str(path))
        arguments = path, config or StoreConfig(), read_only, now_ms, due_from_ms
        if read_only:
            return cls(*arguments)
        store = open_with_room(path, arguments[1], now_ms, lambda: cls(*arguments), retention)
        store.retention = retention or store.retention
        store.keep_ballast()
        return store

    # ---- writing

    def append(
        self,
        records: Buffer,
        sizes: npt.NDArray[np.int32],
        *,
        lanes: Collection[tuple[str, int]] | None = None,
        check_crc: bool = True,
        again: bool = False,
    ) -> AppendResult:
        """Store records of any topics and queues, in order; the buffer is copied, never changed.

        Args:
            lanes: the only (topic, queue id) that the records may belong to; None = any.
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
        return self._writer.append(records, sizes, lanes, check_crc, again)

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

    def check(self, records: Buffer, sizes: npt.NDArray[np.int32], lane: tuple[str, int]) -> None:
        """Look at records of one queue as `append` would; InvalidInput if it would refuse them."""
        self._writer.check(records, sizes, lane)

    def _check_open(self) -> None:
        if self._closed or self._read_only:
            raise StoreError("the store is closed" if self._closed else "the store was opened read-only")

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues, what groups were at in them, and its settings.

        Its records stay in the log until they expire.

        If it is written again its offsets begin at 0. All that is on disk when it returns.
        """
        self.delete_topic_soon(topic)
        self.sync_settings()

    def delete_topic_soon(self, topic: str) -> None:
        """`delete_topic` without waiting for the disk: it is there with the next `sync_settings`.

        Before that a loss of power may bring the topic back, but not if anything was stored in one of that name since.
        """
        self._check_open()
        self._writer.check_ready()
        failpoint("delete_topic.before_state")
        log_end = self._log.max_offset
        deletions, deleted = self._parts.deletions, self._parts.deleted_topics
        for known in [known for known, end in deleted.items() if end <= self._log.min_offset]:
            del deleted[known]  # all that it had has expired
        if self._untold_before:
            self._parts.progress.forget_deletions(self._untold_before)
            self.in_flight.forget_deletions(self._untold_before)
            self._untold_before = 0
        self._shorten_deletions()
        deletions.append((topic, log_end))
        with self._deleting:  # never held while the disk works
            self._deleted_count += 1
            self._dispatcher.unsure.add(topic)
        failpoint("delete_topic.before_queues")
        try:
            moved = self._dispatcher.delete_topic(topic)
        except StoreError:
            deletions.append((topic, TAKEN_BACK))
            raise
        for aside in moved:
            self._remover.moved(self._dispatcher.folder_of(topic), aside)
        self._remover.add([(folder, None) for folder in moved])
        deleted[topic] = log_end
        failpoint("delete_topic.before_progress")
        self._parts.progress.forget_topic(topic, log_end)
        self.in_flight.forget_topic(topic, log_end)
        failpoint("delete_topic.before_settings")
        self.topic_configs.delete_soon(topic)

    def sync_settings(self) -> None:
        """Wait until the changes of topics and groups are on disk; StoreFailed: they may not be. Any thread."""
        self._sync_deletions()
        self.topic_configs.sync()
        self.group_configs.sync()

    def _sync_deletions(self) -> None:
        """Bring to disk that topics were deleted, and what groups had come to in them with that."""
        with self._settling:
            with self._deleting:
                unsure, count = self._dispatcher.unsure.copy(), self._deleted_count
            if unsure:
                try:
                    self._parts.deletions.sync()
                    self.sync_progress()
                except StoreBusy:
                    raise
                except StoreFailed as error:
                    self._parts.health.fail(error)
                    raise
                with self._deleting:
                    if count == self._deleted_count:  # else one of them may have been deleted once more
                        self._dispatcher.unsure.clear()
            if self._parts.deletions.is_diverted:
                with contextlib.suppress(StoreFull, StoreBusy):  # nothing is lost, and the next call tries again
                    told = self._parts.deletions.settle(list(self._parts.deleted_topics.items()))
                    self._shorten_at = max(_LEAST_DELETIONS_BYTES, 2 * told)
                    self._untold_before = min(self._state_tells_from, self._settled_tells_from)

    def _shorten_deletions(self) -> None:
        """Have the journal of deletions say in less what it says, once much of that is said again later or has expired.

        It is written by `_sync_deletions`.
        """
        deletions = self._parts.deletions
        # A state of before what has expired was deleted still tells of its queues.
        log_min = self._log.min_offset
        if deletions.length >= self._shorten_at and self._saved_to >= log_min and not deletions.is_diverted:
            with contextlib.suppress(StoreFull, StoreBusy):  # the next deletion tries again
                deletions.divert()
                self._settled_tells_from = log_min

    def incarnation(self, topic: str) -> int:
        """Rises when a topic of that name is deleted: what is made anew is another topic. 0 if none ever was.

        It is where the log ended then, and forgotten once no record from before that is left.
        """
        return self._parts.deleted_topics.get(topic, 0)

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
        decision = self.retention.decide(newest_ms, file_bytes, self._now_ms(), disk, asked=asked)
        removals: list[Removal] = []
        if decision.files:
            failpoint("retention.before_detach")
            with self.room_is_coming():
                end = rescue(files[decision.files - 1][0])
            removals += self._log.files.detach_before(end)
        of_queues, of_index = self._dispatcher.follow(self._log.min_offset, _QUEUES_A_RUN)
        failpoint("retention.before_add")
        self._remover.add([*removals, *of_queues, *of_index])
        return Deleted(len(removals), len(of_queues), len(of_index), decision.reason)

    def leaving_before(self) -> int:
        """Where the log will begin when `retention` has run for the next time, if the disk is not too full by then.

        So what is to outlive files may be stored anew ahead of it, little by little.
        """
        return self._log.expired_to(self.retention.next_oldest_ms(self._now_ms()))

    def room_is_coming(self) -> AbstractContextManager[None]:
        """In it one writes although the disk is fuller than it may be: what is written lets files go."""
        return self._writer.room_is_coming()

    def wait_for_removals(self, timeout: float | None = None) -> bool:
        """Wait until what `delete_expired` let go of is off the disk; False after `timeout` seconds. Any thread."""
        return self._remover.wait(timeout)

    # ---- reading

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        tags_codes: Collection[int] | None = None,
        *,
        check_crc: bool = True,
        written: bool = False,
    ) -> Lease:
        """Records of a queue from `offset` on, at least one where there is one, even above `max_bytes`.

        With `tags_codes` only entries of these codes; a call looks at a bounded number of entries, so that it may
        return none although there are more: go on at `next_offset`. A damaged record ends what is returned before it.

        Args:
            check_crc: False for a caller that compares the bodies' checksums itself. What is in the log's newest file,
                and was found sound when it was appended or read, is then not looked at again.

        Raises:
            OffsetOutOfRange: below the minimum or beyond the maximum (at the maximum the lease is empty).
            QueueNotFound: nothing was ever written there.
            StoreCorrupt: the record at `offset` is damaged; those behind it can be read.
        """
        return self._reader.read(topic, queue_id, offset, max_messages, max_bytes, tags_codes, check_crc, written)

    def read_at(self, physical_offset: int) -> Record:
        """The record at a place of the log.

        Raises:
            MessageExpired: below the log's minimum. MessageNotFound: not confirmed, or no record begins there.
            StoreCorrupt: it is damaged.
        """
        return self._reader.record(physical_offset)

    def raw_at(self, physical_offset: int) -> bytes:
        """The bytes of the record at a place of the log; raises as `read_at`."""
        return bytes(self._log.view(physical_offset, self._reader.record(physical_offset).size))

    def stored(self, physical_offset: int, size: int) -> memoryview:
        """The bytes of a record that was just stored there: a view, which keeps the log's mapping."""
        return self._log.view(physical_offset, size)

    def raw_many(self, physical_offsets: Sequence[int], sizes: Sequence[int]) -> bytes:
        """The bytes at several places of the log in one piece, unchecked; each lies within minimum..maximum."""
        return b"".join(map(self._log.view, physical_offsets, sizes))

    def walk(self, physical_offset: int) -> Iterator[Record]:
        """All written records in log order from a record's place (or the minimum) on; raises as `read_at`."""
        return self._log.walk(physical_offset)

    def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int, *, written: bool = False
    ) -> list[Record]:
        """Messages of the topic with that unique key or key, stored within begin..end, newest first."""
        return finish(self.search(topic, key, begin_ms, end_ms, max_messages, written=written))

    def search(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        max_messages: int,
        max_bytes: int | None = None,
        *,
        written: bool = False,
    ) -> Steps[list[Record]]:
        """`query` in steps, none of which takes longer than some milliseconds: see `raymq.storage.steps`.

        Between two of them the store may be used, and written to: what is stored from now on is not found, and what
        expires may be.

        Args:
            max_bytes: it ends before the record with which all would be longer than that, unless it is the first one.
        """
        return self._reader.search(topic, key, begin_ms, end_ms, max_messages, max_bytes, written=written)

    def entries(
        self, topic: str, queue_id: int, offset: int, max_entries: int, *, written: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Copies of a queue's entries: physical offsets, sizes, tags codes. Raises as `read`."""
        queue = self._dispatcher.get(topic, queue_id)
        end = self._reader.end_of(queue, written=written)
        check_offset(queue, offset, end)
        found = queue.entries(offset, min(max_entries, end - offset))
        return (
            found["physical_offset"].astype(np.int64),
            found["size"].astype(np.int32),
            found["tags_code"].astype(np.int64),
        )

    def topics(self) -> list[str]:
        """The topics that have a queue."""
        return self._dispatcher.queues.topics()

    def queues(self, topic: str) -> list[int]:
        """The topic's queues that were ever written; none if there is no such topic."""
        return self._dispatcher.queues.of(topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest message's offset, the maximum if all are gone. QueueNotFound as `read`."""
        return self._dispatcher.get(topic, queue_id).min_offset

    def max_offset(self, topic: str, queue_id: int, *, written: bool = False) -> int:
        """The offset behind the last message that can be read. QueueNotFound as `read`."""
        queue = self._dispatcher.get(topic, queue_id)
        return queue.max_offset if written else self.confirmed.end_of(queue)

    def offset_at_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The first message stored at that time or later, the maximum if there is none.

        With `boundary="upper"` the last message stored at that time or earlier, the minimum if there is none.
        QueueNotFound as `read`.
        """
        return finish(self.search_time(topic, queue_id, timestamp_ms, boundary=boundary))

    def search_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> Steps[int]:
        """`offset_at_time` in steps, one of them unless many records in a row are damaged; see `raymq.storage.steps`.

        Between two of them the store may be used; QueueNotFound also if the topic was deleted meanwhile.
        """
        return self._reader.search_time(topic, queue_id, timestamp_ms, boundary)

    def kept_at_open(self, topic: str, queue_id: int) -> int | None:
        """Where a queue ended when the store was opened, if that may have been too early; None: it was not.

        It tells nothing of a reader that does not say its epoch, but that one who is beyond the queue's end was there.
        """
        return self._kept(topic, queue_id, self._parts.epochs.cut_at_open)

    def kept_to(self, topic: str, queue_id: int, epoch: int) -> int | None:
        """Up to which offset a queue is the one that was read under `epoch`; None: all of it.

        Who is beyond has read what the log has lost, and goes on there: other messages have these offsets now.
        """
        return self._kept(topic, queue_id, self._parts.epochs.cut_since(epoch))

    def _kept(self, topic: str, queue_id: int, log_end: int | None) -> int | None:
        """Up to which offset a queue is of the log up to `log_end`; None: all of it, as without one."""
        if log_end is None:
            return None
        try:
            queue = self._dispatcher.get(topic, queue_id)
        except QueueNotFound:
            return 0
        return max(queue.reach(log_end), queue.min_offset)

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Where the log ends, be that confirmed or not."""
        return self._log.max_offset

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
        self._parts.progress.journal.sync()
        self.in_flight.sync()

    def _save_checkpoint(self) -> None:
        """Bring log, queues, index and progress to disk, then say so. Any thread.

        Raises:
            StoreFull: not done, the last one holds. StoreFailed: the store refuses writes from now on.
        """
        try:
            self._checkpoint_now()
        except StoreFailed as error:
            self._parts.health.fail(error)
            raise

    def _checkpoint_now(self) -> None:
        with self._checkpointing:
            # Everything that the state says is read before anything is brought to disk.
            log_min = self._log.min_offset
            deleted = {t: p for t, p in list(self._parts.deleted_topics.items()) if p > log_min}
            to = self._dispatcher.dispatched_to
            timestamp_ms = self._log.last_timestamp_ms
            index = self._dispatcher.index.extent()
            queues = self._dispatcher.max_offsets()
            failpoint("checkpoint.before_flush")
            self._log.flush()
            failpoint("checkpoint.before_queues")
            self._dispatcher.sync()
            failpoint("checkpoint.before_journal")
            self.sync_progress()
            self.sync_settings()
            failpoint("checkpoint.before_times")
            self._parts.checkpoint = Checkpoint(
                timestamp_ms,
                timestamp_ms,
                index.end_ms,
                self._parts.checkpoint.master_flushed_offset,
                self._parts.checkpoint.confirm_offset,
            )
            self._parts.checkpoint.save(self._parts.paths.checkpoint)
            geometry = layout_of.geometry(self.config)
            failpoint("checkpoint.before_state")
            self._log.walk_start.note(to)
            walk_from = self._log.walk_start.before(to)
            state = State(to, index.end_physical, index, queues, deleted, geometry, boot_id(), walk_from)
            state.save(self._parts.paths.state)
            self._saved_to, self._state_tells_from = to, log_min
            failpoint("checkpoint.after_state")

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
                fileutil.remove(self._parts.paths.abort)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Let go of files, threads and lock, and leave the rest as it is."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
