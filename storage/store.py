"""The facade of one broker's store: a directory of messages, their indexes, settings and consumers' progress.

Thread rule: a store belongs to one thread (the broker's loop), which alone calls its methods; only `flush` and
`flushed_offset` may be used from others at the same time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from raymq.storage import directory as layout_of
from raymq.storage import fileutil
from raymq.storage import record as layout
from raymq.storage.checkpoint import Checkpoint, State, boot_id
from raymq.storage.commit_log import CommitLog
from raymq.storage.config import StoreConfig, split_host
from raymq.storage.dispatch import Dispatcher
from raymq.storage.errors import InvalidInput, StoreError
from raymq.storage.flush import Flusher
from raymq.storage.group_config import GroupConfigs
from raymq.storage.key_index import KeyIndex
from raymq.storage.lease import Lease
from raymq.storage.progress import Progress
from raymq.storage.reading import Reader
from raymq.storage.record import Buffer, Record
from raymq.storage.recovery import RecoveryReport, recover
from raymq.storage.topic_config import TopicConfigs
from raymq.storage.writing import AppendResult, Writer

__all__ = ["AppendResult", "Store"]


class Store:
    """An open store directory; see the module for the thread rule. Use `Store.open`, and `close` or `with`.

    Attributes:
        directory, config: where it is, and its settings (sizes of existing files win over those asked for).
        recovery: what opening found.
        topic_configs, group_configs, consumer_offsets, delay_progress: kept settings and progress.
    """

    def __init__(self, directory: Path, config: StoreConfig, read_only: bool, now_ms: Callable[[], int]) -> None:
        self.directory = directory
        self._read_only = read_only
        self._paths = paths = layout_of.Paths(directory)
        self._lock = None if read_only else layout_of.take_lock(paths)
        self._closed = False
        try:
            state = State.load(paths.state)
            self.config = config = layout_of.fitted(config, paths, state)
            clean = not paths.abort.exists()
            if not read_only:
                fileutil.replace(paths.abort, str(os.getpid()).encode())
            host, port = split_host(config.store_host)
            writable = not read_only
            self._log = CommitLog(
                paths.commit_log, config.commitlog_file_bytes, layout.pack_host_bytes(host, port), writable=writable
            )
            index = KeyIndex(paths.index, config.index_slots, config.index_entries, writable=writable)
            self._dispatcher = Dispatcher(
                paths.consume_queue, config.consume_queue_file_entries, index, config.delays_ms, writable=writable
            )
            self._checkpoint = Checkpoint.load(paths.checkpoint)
            self._deleted_topics = dict(state.deleted_topics) if state else {}
            self.recovery: RecoveryReport = recover(
                self._log,
                self._dispatcher,
                state,
                self._checkpoint,
                clean=clean,
                same_boot=state is not None and state.boot == boot_id() != "",
                aside=None if read_only else paths.damaged,
            )
            self._reader = Reader(self._log, self._dispatcher)
            progress = self._progress = Progress(paths.config, paths.journal, writable=writable)
            self.consumer_offsets = progress.consumer_offsets
            self.delay_progress = progress.delay_progress
            self.topic_configs = TopicConfigs(paths.topics, writable=writable)
            self.group_configs = GroupConfigs(paths.groups, writable=writable)
            self._writer = Writer(directory, config, self._log, self._dispatcher, now_ms)
            self._derived = threading.Lock()
            if not read_only:
                self._log.files.sync(self.recovery.walked_from, self._log.max_offset)
                self._save_checkpoint()
        except BaseException:
            self._abandon()
            raise
        self._flusher = Flusher(
            self._log.flush,
            self._save_checkpoint,
            lambda: self._log.max_offset - self._log.flushed_offset,
            config.flush_interval_ms,
            config.flush_least_pages,
        )
        if not read_only:
            self._flusher.start()

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: StoreConfig | None = None,
        read_only: bool = False,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> Store:
        """Open a directory, new or not, and recover it.

        Args:
            read_only: take no lock and write nothing; it shows what is there at this moment.
            now_ms: the clock of store times.

        Raises:
            StoreLocked: another process or another Store of this one has it.
            StoreCorrupt: files of a wrong size or missing between others, settings that cannot be read.
            InvalidInput: read-only, and there is no directory.
        """
        path = Path(directory)
        if read_only and not path.is_dir():
            raise InvalidInput("directory", "a store directory", str(path))
        return cls(path, config or StoreConfig(), read_only, now_ms)

    # ---- writing

    def append(
        self,
        records: Buffer,
        sizes: npt.NDArray[np.int32],
        *,
        lanes: Collection[tuple[str, int]] | None = None,
    ) -> AppendResult:
        """Store records of any topics and queues, in order; the buffer is copied, never changed.

        Args:
            lanes: the only (topic, queue id) that the records may belong to; None = any.

        When it returns, queues and index know them and they survive the death of the process; `flush` makes them
        survive that of the machine.

        Raises:
            InvalidInput: a record is not sound or breaks a limit; nothing was stored.
            StoreFull: the disk is too full. StoreFailed: the disk failed earlier; open the store again.
        """
        self._check_open()
        return self._writer.append(records, sizes, lanes)

    def _check_open(self) -> None:
        if self._closed or self._read_only:
            raise StoreError("the store is closed" if self._closed else "the store was opened read-only")

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues and its settings; its records stay in the log until they expire.

        If it is written again its offsets begin at 0.
        """
        self._check_open()
        self._writer.check_ready()
        self._deleted_topics[topic] = self._log.max_offset
        self._save_checkpoint()
        with self._derived:
            self._dispatcher.delete_topic(topic)
        self.topic_configs.delete(topic)

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
    ) -> Lease:
        """Records of a queue from `offset` on, at least one where there is one, even above `max_bytes`.

        With `tags_codes` only entries of these codes; a call looks at a bounded number of entries, so that it may
        return none although there are more: go on at `next_offset`. A damaged record ends what is returned before it.

        Raises:
            OffsetOutOfRange: below the minimum or beyond the maximum (at the maximum the lease is empty).
            QueueNotFound: nothing was ever written there.
            StoreCorrupt: the record at `offset` is damaged; those behind it can be read.
        """
        return self._reader.read(topic, queue_id, offset, max_messages, max_bytes, tags_codes, check_crc)

    def read_at(self, physical_offset: int) -> Record:
        """The record at a place of the log.

        Raises:
            MessageExpired: below the log's minimum. MessageNotFound: beyond its end, or no record begins there.
            StoreCorrupt: it is damaged.
        """
        return self._log.record(physical_offset)

    def raw_at(self, physical_offset: int) -> bytes:
        """The bytes of the record at a place of the log; raises as `read_at`."""
        return bytes(self._log.view(physical_offset, self._log.record(physical_offset).size))

    def walk(self, physical_offset: int) -> Iterator[Record]:
        """The records in log order from a record's place (or the minimum) to the end; raises as `read_at`."""
        return self._log.walk(physical_offset)

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int) -> list[Record]:
        """Messages of the topic with that unique key or key, stored within begin..end, newest first."""
        return self._reader.query(topic, key, begin_ms, end_ms, max_messages)

    def entries(
        self, topic: str, queue_id: int, offset: int, max_entries: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Copies of a queue's entries: physical offsets, sizes, tags codes. Raises as `read`."""
        queue = self._dispatcher.get(topic, queue_id)
        self._reader.check_offset(queue, offset)
        found = queue.entries(offset, max_entries)
        return (
            found["physical_offset"].astype(np.int64),
            found["size"].astype(np.int32),
            found["tags_code"].astype(np.int64),
        )

    def topics(self) -> list[str]:
        """The topics that have a queue."""
        return sorted({topic for topic, _ in self._dispatcher.queues})

    def queues(self, topic: str) -> list[int]:
        """The topic's queues that were ever written; none if there is no such topic."""
        return sorted(queue_id for name, queue_id in self._dispatcher.queues if name == topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest message's offset, the maximum if all are gone. QueueNotFound as `read`."""
        return self._dispatcher.get(topic, queue_id).min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The next message's offset. QueueNotFound as `read`."""
        return self._dispatcher.get(topic, queue_id).max_offset

    def offset_at_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message stored at that time or later; the maximum if there is none. QueueNotFound as `read`."""
        return self._reader.offset_at_time(self._dispatcher.get(topic, queue_id), timestamp_ms)

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Where the log ends."""
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

    def _save_checkpoint(self) -> None:
        """Bring log, queues, index and progress to disk, then say so. Any thread."""
        with self._derived:
            deleted = {t: p for t, p in self._deleted_topics.items() if p > self._log.min_offset}
            to = self._dispatcher.dispatched_to
            timestamp_ms = self._log.last_timestamp_ms
            indexed_to, index_ms = self._dispatcher.index.end_physical, self._dispatcher.index.end_ms
            queues: dict[str, dict[int, int]] = {}
            for (topic, queue_id), queue in list(self._dispatcher.queues.items()):
                if queue.max_offset:
                    queues.setdefault(topic, {})[queue_id] = queue.max_offset
            self._log.flush()
            self._dispatcher.sync()
            self._progress.journal.sync()
            self._checkpoint = Checkpoint(
                timestamp_ms,
                timestamp_ms,
                index_ms,
                self._checkpoint.master_flushed_offset,
                self._checkpoint.confirm_offset,
            )
            self._checkpoint.save(self._paths.checkpoint)
            geometry = layout_of.geometry(self.config)
            State(to, indexed_to, queues, deleted, geometry, boot_id()).save(self._paths.state)

    def close(self) -> None:
        """Stop properly: all is on disk, the next opening is clean. Leases stay valid. May be called again.

        After a failure of the disk the directory is left as one that was not closed.
        """
        if self._closed:
            return
        self._closed = True
        self._flusher.stop()
        try:
            if not self._read_only and self._log.failure is None:
                self._progress.close(fold=True)
                self._save_checkpoint()
                fileutil.remove(self._paths.abort)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Let go of files and lock, and leave the rest as it is."""
        for part in ("_log", "_dispatcher"):
            if hasattr(self, part):
                getattr(self, part).close()
        if hasattr(self, "_progress"):
            self._progress.close(fold=False)
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
