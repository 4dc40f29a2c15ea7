"""Derive consume queue entries and index keys from appended records.

Everything derived here can be rebuilt from the commit log; recovery does so with the same functions.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from raymq.storage.cooperative_steps import Steps
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import QueueNotFound, StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_cache import MappedFileCache
from raymq.storage.log.consume_queue import ConsumeQueue, make_entries
from raymq.storage.log.entry_writer import EntryWriter
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.queue_table import QueueTable
from raymq.storage.log.record_checker import CheckedRecord
from raymq.storage.log.retention import Removal
from raymq.storage.records import record as layout
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.index_inputs import IndexInputs
from raymq.storage.records.record_batch import TOPIC_PATTERN, Batch

_log = logging.getLogger(__name__)
#: How many queues' last entries are read in one step.
_ENDS_A_STEP = 100
_QUEUE_FOLDER = re.compile(r"0|[1-9][0-9]{0,9}")


class DelayLevels(Protocol):
    """How long the messages of the schedule topic wait."""

    def delay_ms(self, queue_id: int) -> int:
        """Return the present delay of a queue."""

    def due_ms(self, queue_id: int, places: Int64s, from_ms: Int64s) -> Int64s:
        """Return when records at these physical offsets are due that have waited since `from_ms`."""


class Dispatcher:
    """The queues and the index of one store.

    It belongs to the store's writer; any thread may call `sync`.
    """

    def __init__(
        self,
        folder: Path,
        aside: Path,
        file_entries: int,
        index: KeyIndex,
        delays: DelayLevels,
        *,
        writable: bool,
        rebuilt: bool = False,
        whole: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        """Look up the queues.

        Args:
            aside: where the folders of deleted topics are moved, to be removed later.
            rebuilt: the file size is known to be that of these files: a queue with a damaged file is dropped, and
                recovery rebuilds it from the log.
            whole: how far each queue was on disk when the machine crashed; None = the machine did not crash.

        Raises:
            StoreCorrupt: a queue file has another size or is missing, unless `rebuilt`.
        """
        self.index = index
        self._folder = folder
        self._aside = aside
        #: Folders of deleted topics that a crashed process did not remove.
        self.leftovers = [each for each in fileutil.paths_in(aside) if each.name.isdigit()]
        self._deleted = itertools.count(1 + max((int(each.name) for each in self.leftovers), default=0))
        self._file_entries = file_entries
        self.delays = delays
        self._writable = writable
        #: None for a read-only store: the entries that recovery adds stay in memory.
        self.entry_writer = EntryWriter() if writable else None
        #: Folders in which names were changed that may not be on disk.
        self._unsynced_folders: set[Path] = set()
        # In a read-only store recovery changes only the mappings, so none may be closed.
        self._file_cache = MappedFileCache() if writable else None
        self.queues = QueueTable()
        for topic, queue_id, path in _queue_folders(folder):
            try:
                whole_to = None if whole is None else whole.get(topic, {}).get(queue_id, 0)
                self.queues[topic, queue_id] = ConsumeQueue(
                    path,
                    file_entries,
                    writable=writable,
                    whole_to=whole_to,
                    open_files=self._file_cache,
                    writer=self.entry_writer,
                )
            except StoreCorrupt:
                if not (rebuilt and writable):
                    raise
                fileutil.remove_tree(path)  # Recovery rebuilds the missing queue from the log.
        #: Deleted topics whose deletion may not be on disk, and the function that syncs it.
        self.unsynced_deletions: set[str] = set()
        self.sync_deletions: Callable[[], None] = lambda: None
        #: The end of the dispatched part of the log.
        self.dispatched_to = 0
        #: The clock that gives the begin of a new record's delay; None = its store time.
        self.delay_clock_ms: Callable[[], int] | None = None
        self._log_min = 0
        self._unswept: list[tuple[str, int]] | None = None

    def start(self) -> None:
        """Start the thread that writes the queues' new entries into their files."""
        if self.entry_writer is not None:
            self.entry_writer.start()

    def mark_synced(self, queues: dict[str, dict[int, int]]) -> None:
        """Record that the queues' entries before these offsets are on disk.

        `sync` skips them.
        """
        for topic, offsets in queues.items():
            for queue_id, max_offset in offsets.items():
                if (queue := self.queues.get((topic, queue_id))) is not None:
                    queue.mark_synced(max_offset)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; raise QueueNotFound if nothing was ever written to it."""
        try:
            queue = self.queues[topic, queue_id]
        except KeyError:
            raise QueueNotFound(f"topic {topic} has no messages in queue {queue_id}") from None
        if queue.trimmed_to < self._log_min:
            queue.trim(self._log_min)
        return queue

    def follow(self, log_min: int, most_queues: int) -> list[Removal]:
        """Forget entries below the log's new minimum; return the queue files to remove.

        Queues report the right minimum at once. One call examines the files of only `most_queues` queues, so that it is
        quick; the next call continues, until all queues have been examined. A queue whose files cannot be read now does
        not stop the others: it is tried again after them.
        """
        if log_min > self._log_min or self._unswept is None:
            self._log_min = log_min
            self._unswept = list(self.queues)
        removals: list[Removal] = []
        unread: list[tuple[str, int]] = []
        for key in self._unswept[-most_queues:]:
            queue = self.queues.get(key)
            try:
                removals += () if queue is None else queue.detach_before(log_min)
            except (StoreError, OSError) as error:
                _log.warning("files of queue %d of %s that have expired are kept for now: %s", key[1], key[0], error)
                unread.append(key)
        del self._unswept[-most_queues:]
        self._unswept[:0] = unread
        return removals

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, creating it if needed.

        The folder of a new queue is made with its first entry.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if topic in self.unsynced_deletions:  # else a loss of power could leave two topics of this name in the log
                self.sync_deletions()
            folder = self._folder / topic / str(queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(
                folder,
                self._file_entries,
                writable=self._writable,
                open_files=self._file_cache,
                writer=self.entry_writer,
            )
        return queue

    def assign(self, batch: Batch, keys: int) -> Int64s:
        """Return the queue offsets of a new batch's records.

        Room for their entries and keys is ensured; raise StoreFull if there is none.
        """
        self.index.reserve(keys)
        offsets = np.empty(len(batch), np.int64)
        for group in batch.groups:
            count = len(batch) if group.members is None else len(group.members)
            queue = self.reserve((group.topic, group.queue_id))
            offsets[slice(None) if group.members is None else group.members] = np.arange(
                queue.max_offset, queue.max_offset + count
            )
        return offsets

    def dispatch(
        self,
        batch: Batch,
        derived: IndexInputs,
        queue_offsets: Int64s,
        physical_offsets: Int64s,
        timestamps_ms: Int64s,
        *,
        queued: npt.NDArray[np.bool_] | None = None,
        index_after: int = -1,
        anew: bool = False,
    ) -> None:
        """Write the queue entries and the keys of records that are in the log.

        Args:
            anew: the records are stored just now, so that their delay begins now. For other records, whose entries are
                rebuilt, only two things are known: their store times, which stand still for a while after a clock that
                was ahead is set back, and the delay table that was in force at their physical offsets.
            queued: which records have an entry in a queue; None = all.
            index_after: keys of records up to this physical offset are in the index already.
        """
        entries = make_entries(physical_offsets, batch.sizes, derived.tags_codes)
        for group in batch.groups:
            members: slice | Int64s = slice(None) if group.members is None else group.members
            if group.topic == SCHEDULE_TOPIC:
                entries["tags_code"][members] = self._due_ms(
                    group.queue_id, physical_offsets[members], timestamps_ms[members], anew=anew
                )
            if queued is not None:
                members = np.arange(len(batch))[members]
                members = members[queued[members]]
                if not len(members):
                    continue
            failpoint("dispatch.before_queue")
            queue = self.open(group.topic, group.queue_id)
            offsets = queue_offsets[members]
            chosen = entries[members]
            # The offsets are consecutive unless the log has lost records in between.
            cuts = (np.flatnonzero(offsets[1:] - offsets[:-1] != 1) + 1).tolist()
            for start, stop in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
                queue.put(int(offsets[start]), chosen[start:stop])
        failpoint("dispatch.before_index")
        self._index(batch, derived, physical_offsets, timestamps_ms, index_after)

    def reserve(self, topic_queue: tuple[str, int]) -> ConsumeQueue:
        """Return the queue, new if needed, with room for entries; raise StoreFull if none."""
        queue = self.queues.get(topic_queue) or self.open(*topic_queue)
        if self.entry_writer is not None:
            self.entry_writer.check_room()
        return queue

    def reserve_few(self, singles: Sequence[CheckedRecord]) -> Sequence[ConsumeQueue]:
        """Return the queue of each record; ensure room as `assign` does."""
        if len(singles) == 1:
            self.index.reserve(len(singles[0].key_hashes))
            return (self.reserve(singles[0].topic_queue),)
        self.index.reserve(sum([len(single.key_hashes) for single in singles]))
        return [self.reserve(single.topic_queue) for single in singles]

    def dispatch_one(self, single: CheckedRecord, queue: ConsumeQueue, physical_offset: int, timestamp_ms: int) -> None:
        """Write the queue entry and keys of one checked record in the log."""
        record, (topic, queue_id), _, tags_code, key_hashes = single
        if topic == SCHEDULE_TOPIC:
            from_ms = timestamp_ms if self.delay_clock_ms is None else self.delay_clock_ms()
            tags_code = from_ms + self.delays.delay_ms(queue_id)
        queue.append(physical_offset, len(record), tags_code)
        failpoint("dispatch.one_before_index")
        self.index.put_record(key_hashes, physical_offset, timestamp_ms)

    def _due_ms(self, queue_id: int, places: Int64s, timestamps_ms: Int64s, *, anew: bool) -> int | Int64s:
        """Return when records of a queue of the schedule topic are due.

        `anew` is as in `dispatch`.
        """
        if not anew:
            return self.delays.due_ms(queue_id, places, timestamps_ms)
        from_ms = timestamps_ms if self.delay_clock_ms is None else self.delay_clock_ms()
        return from_ms + self.delays.delay_ms(queue_id)

    def _index(
        self, batch: Batch, derived: IndexInputs, physical_offsets: Int64s, timestamps_ms: Int64s, index_after: int
    ) -> None:
        if physical_offsets[0] <= index_after:
            derived = derived.without(physical_offsets <= index_after)
        if batch.any_flags & layout.SYS_FLAG_TRANSACTION_MASK:
            kinds = batch.sys_flags & layout.SYS_FLAG_TRANSACTION_MASK
            derived = derived.without(kinds == layout.SYS_FLAG_TRANSACTION_ROLLBACK)
        owners = derived.key_owners
        if len(owners):
            self.index.put(derived.key_hashes, physical_offsets[owners], timestamps_ms[owners])

    def delete_topic(self, topic: str) -> list[Path]:
        """Forget the topic's queues and return their moved folder for the caller to remove.

        The folder is moved aside so that new queues of the topic can be made; the next `sync` makes the move durable.
        Raise StoreFull or StoreFailed if that fails, which leaves the queues unchanged.
        """
        # The lock keeps the entry thread from recreating the folder before its queues are closed.
        with contextlib.nullcontext() if self.entry_writer is None else self.entry_writer.lock:
            moved = self._put_aside(topic)
            for queue in self.queues.take(topic):
                queue.close()
        return moved

    def folder_of(self, topic: str) -> Path:
        """Return the folder of the topic's queues."""
        return self._folder / topic

    def _put_aside(self, topic: str) -> list[Path]:
        folder = self.folder_of(topic)
        if not TOPIC_PATTERN.fullmatch(topic.encode()) or not folder.is_dir():
            return []
        aside = self._aside / str(next(self._deleted))
        fileutil.make_folder(self._aside, durable=False)
        fileutil.move(folder, aside)
        self._unsynced_folders.add(self._folder)
        return [aside]

    def drop_deleted(self, deleted: Mapping[str, int]) -> None:
        """Remove the queues of deleted topics that received no message since.

        `deleted` holds the log's end at each topic's deletion. Such queues remain if the process crashed in the middle
        of a deletion.
        """
        for topic, log_end in deleted.items():
            ends = [self.queues[topic, queue_id].end_physical() for queue_id in self.queues.of(topic)]
            if ends and max(ends) <= log_end:
                for folder in self.delete_topic(topic):
                    fileutil.remove_tree(folder)

    def max_offsets(self) -> dict[str, dict[int, int]]:
        """Return the end of each queue that has ever had a message; any thread."""
        offsets: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self.queues.copy().items():
            if queue.max_offset:
                offsets.setdefault(topic, {})[queue_id] = queue.max_offset
        return offsets

    def expired_ends(self, log_min: int) -> Steps[dict[str, dict[int, int]]]:
        """Return the ends of queues all of whose messages lie before `log_min`.

        Queues that never had a message are left out.
        """
        ends: dict[str, dict[int, int]] = {}
        for number, (topic, queue_id) in enumerate(list(self.queues)):
            if number and number % _ENDS_A_STEP == 0:
                yield None
            queue = self.queues.get((topic, queue_id))
            if queue is not None and queue.max_offset and queue.end_physical() <= log_min:
                ends.setdefault(topic, {})[queue_id] = queue.max_offset
        return ends

    def sync(self) -> None:
        """Wait until the entries of queues and index from before the call are on disk."""
        changed = [queue for queue in list(self.queues.values()) if queue.start_sync()]
        for queue in changed:
            self._unsynced_folders.update(queue.sync())
        # Each folder is synced once, although many queues share a topic's folder and its parents.
        for folder in sorted(self._unsynced_folders, key=lambda folder: len(folder.parts), reverse=True):
            self._unsynced_folders.discard(folder)
            try:
                fileutil.sync_directory(folder)
            except StoreError:
                if folder.is_dir():  # Otherwise its topic was deleted meanwhile.
                    self._unsynced_folders.add(folder)
                    raise
        self.index.sync()

    def close(self) -> None:
        """Close the files and stop the thread; unwritten entries are dropped."""
        if self.entry_writer is not None:
            self.entry_writer.stop()
        for queue in self.queues.values():
            queue.close()
        self.index.close()


def _queue_folders(folder: Path) -> list[tuple[str, int, Path]]:
    found: list[tuple[str, int, Path]] = []
    for topic in fileutil.entries_of(folder):
        if topic.is_dir() and TOPIC_PATTERN.fullmatch(topic.name.encode()):
            path = folder / topic.name
            queues = [q.name for q in fileutil.entries_of(path) if q.is_dir() and _QUEUE_FOLDER.fullmatch(q.name)]
            found += [(topic.name, int(name), path / name) for name in queues]
    return sorted(found)
