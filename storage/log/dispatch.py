"""From appended records to what is derived from them: consume queues and the index of keys.

Everything here can be rebuilt from the commit log, and recovery does so with the same functions.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import QueueNotFound, StoreCorrupt, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.open_files import OpenFiles
from raymq.storage.log.checking import Single
from raymq.storage.log.consume_queue import ConsumeQueue, make_entries
from raymq.storage.log.delay_tables import DelayTables
from raymq.storage.log.entry_writer import EntryWriter
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.queue_table import QueueTable
from raymq.storage.log.retention import Removal
from raymq.storage.records import record as layout
from raymq.storage.records.batch import TOPIC_PATTERN, Batch
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.index_inputs import Derived
from raymq.storage.steps import Steps

_log = logging.getLogger(__name__)
#: Of how many queues the last entry is read in one step.
_ENDS_A_STEP = 100
_QUEUE_FOLDER = re.compile(r"0|[1-9][0-9]{0,9}")


class Dispatcher:
    """The queues and the index of one store. Belongs to the store's writer; `sync` to any thread."""

    def __init__(
        self,
        folder: Path,
        aside: Path,
        file_entries: int,
        index: KeyIndex,
        delays: DelayTables,
        *,
        writable: bool,
        rebuilt: bool = False,
        whole: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        """Look at the queues.

        Args:
            aside: where the folders of deleted topics go, for somebody to remove them.
            rebuilt: the size is surely that of these files: a queue with a damaged one is dropped, and recovery makes
                it anew from the log.
            whole: how far each queue was on disk when the machine died; None = it did not.

        Raises:
            StoreCorrupt: a queue file of another size, or a missing one, unless `rebuilt`.
        """
        self.index = index
        self._folder = folder
        self._aside = aside
        #: What a process that died has not removed of the topics that it had deleted.
        self.leftovers = [each for each in fileutil.paths_in(aside) if each.name.isdigit()]
        self._deleted = itertools.count(1 + max((int(each.name) for each in self.leftovers), default=0))
        self._file_entries = file_entries
        self.delays = delays
        self._writable = writable
        #: Read-only, what recovery adds to the queues stays in memory.
        self.entry_writer = EntryWriter() if writable else None
        #: Folders whose names were changed and may not be on disk.
        self._unsynced_folders: set[Path] = set()
        # Read-only, what recovery changes is in the mappings alone: none may be closed.
        self._open_files = OpenFiles() if writable else None
        self.queues = QueueTable()
        for topic, queue_id, path in _queue_folders(folder):
            try:
                whole_to = None if whole is None else whole.get(topic, {}).get(queue_id, 0)
                self.queues[topic, queue_id] = ConsumeQueue(
                    path,
                    file_entries,
                    writable=writable,
                    whole_to=whole_to,
                    open_files=self._open_files,
                    writer=self.entry_writer,
                )
            except StoreCorrupt:
                if not (rebuilt and writable):
                    raise
                fileutil.remove_tree(path)  # Recovery finds it missing, and makes it anew from the log.
        #: Topics that were deleted, which may not be on disk, and what brings it there.
        self.unsure: set[str] = set()
        self.settle: Callable[[], None] = lambda: None
        #: The log up to here is dispatched.
        self.dispatched_to = 0
        #: The clock from which what is stored now waits its delay level; None: its store time.
        self.due_from_ms: Callable[[], int] | None = None
        self._log_min = 0
        self._unswept: list[tuple[str, int]] | None = None

    def start(self) -> None:
        """From now on a thread writes the queues' new entries into their files."""
        if self.entry_writer is not None:
            self.entry_writer.start()

    def trust(self, queues: dict[str, dict[int, int]]) -> None:
        """The entries of these queues before these offsets are on disk already: `sync` need not see to them."""
        for topic, offsets in queues.items():
            for queue_id, max_offset in offsets.items():
                if (queue := self.queues.get((topic, queue_id))) is not None:
                    queue.trust(max_offset)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; QueueNotFound if nothing was ever written to it."""
        try:
            queue = self.queues[topic, queue_id]
        except KeyError:
            raise QueueNotFound(f"topic {topic} has no messages in queue {queue_id}") from None
        if queue.trimmed_to < self._log_min:
            queue.trim(self._log_min)
        return queue

    def follow(self, log_min: int, most_queues: int) -> list[Removal]:
        """Forget what points below the log's new minimum; the files of queues that go with it.

        Queues say the right minimum at once; of their files only some queues' are looked at in one call, so that it
        is quick. The next call goes on with the next ones, until all have been seen. One whose files cannot be read
        (now) keeps no others: it is looked at again behind them.
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
        """The queue, new if need be (its folder appears with its first entry)."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if topic in self.unsure:  # of two topics of one name the log would tell after a loss of power
                self.settle()
            folder = self._folder / topic / str(queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(
                folder,
                self._file_entries,
                writable=self._writable,
                open_files=self._open_files,
                writer=self.entry_writer,
            )
        return queue

    def assign(self, batch: Batch, keys: int) -> Int64s:
        """The queue offsets that a new batch's records get; there is room for entries and keys (StoreFull if not)."""
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
        derived: Derived,
        queue_offsets: Int64s,
        physical_offsets: Int64s,
        timestamps_ms: Int64s,
        *,
        queued: npt.NDArray[np.bool_] | None = None,
        index_after: int = -1,
        anew: bool = False,
    ) -> None:
        """Write the queue entries and keys of records that are in the log.

        Args:
            anew: they are stored just now, so that they wait their delay level from now on. Of others, whose entries
                are made once more, nothing is known but their store times, which a clock that was ahead has stopped,
                and the table of levels that was in force where they lie.
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
            # In one run unless the log has lost some in between.
            cuts = (np.flatnonzero(offsets[1:] - offsets[:-1] != 1) + 1).tolist()
            for start, stop in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
                queue.put(int(offsets[start]), chosen[start:stop])
        failpoint("dispatch.before_index")
        self._index(batch, derived, physical_offsets, timestamps_ms, index_after)

    def reserve(self, topic_queue: tuple[str, int]) -> ConsumeQueue:
        """The queue, new if need be, with room for entries (StoreFull if not)."""
        queue = self.queues.get(topic_queue) or self.open(*topic_queue)
        if self.entry_writer is not None:
            self.entry_writer.check_room()
        return queue

    def dispatch_one(self, single: Single, queue: ConsumeQueue, physical_offset: int, timestamp_ms: int) -> None:
        """Write the entry and the keys of one of these records, now that it is in the log."""
        record, (topic, queue_id), _, tags_code, key_hashes = single
        if topic == SCHEDULE_TOPIC:
            from_ms = timestamp_ms if self.due_from_ms is None else self.due_from_ms()
            tags_code = from_ms + self.delays.delay_ms(queue_id)
        queue.append(physical_offset, len(record), tags_code)
        failpoint("dispatch.one_before_index")
        self.index.put_record(key_hashes, physical_offset, timestamp_ms)

    def _due_ms(self, queue_id: int, places: Int64s, timestamps_ms: Int64s, *, anew: bool) -> int | Int64s:
        """When records of a queue of the schedule topic are due; `anew` as in `dispatch`."""
        if not anew:
            return self.delays.due_ms(queue_id, places, timestamps_ms)
        from_ms = timestamps_ms if self.due_from_ms is None else self.due_from_ms()
        return from_ms + self.delays.delay_ms(queue_id)

    def _index(
        self, batch: Batch, derived: Derived, physical_offsets: Int64s, timestamps_ms: Int64s, index_after: int
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
        """Forget the topic's queues; the folder with their files, out of the way of new ones, for the caller to remove.

        That it is out of the way is on disk with the next `sync`. StoreFull, StoreFailed: the queues are as before.
        """
        # So that no entries are written between the one and the other: their folder would come back.
        with contextlib.nullcontext() if self.entry_writer is None else self.entry_writer.lock:
            moved = self._put_aside(topic)
            for queue in self.queues.take(topic):
                queue.close()
        return moved

    def folder_of(self, topic: str) -> Path:
        """Where the topic's queues have their folders."""
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
        """Remove queues whose topic was deleted when the log ended there, if nothing came in since.

        They are still here if the process died in the middle of the deletion.
        """
        for topic, log_end in deleted.items():
            ends = [self.queues[topic, queue_id].end_physical() for queue_id in self.queues.of(topic)]
            if ends and max(ends) <= log_end:
                for folder in self.delete_topic(topic):
                    fileutil.remove_tree(folder)

    def max_offsets(self) -> dict[str, dict[int, int]]:
        """How far each queue reaches that has ever had a message. Any thread."""
        offsets: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self.queues.copy().items():
            if queue.max_offset:
                offsets.setdefault(topic, {})[queue_id] = queue.max_offset
        return offsets

    def expired_ends(self, log_min: int) -> Steps[dict[str, dict[int, int]]]:
        """How far each queue is that has had messages, none of which lies at or behind `log_min`."""
        ends: dict[str, dict[int, int]] = {}
        for number, (topic, queue_id) in enumerate(list(self.queues)):
            if number and number % _ENDS_A_STEP == 0:
                yield None
            queue = self.queues.get((topic, queue_id))
            if queue is not None and queue.max_offset and queue.end_physical() <= log_min:
                ends.setdefault(topic, {})[queue_id] = queue.max_offset
        return ends

    def sync(self) -> None:
        """Wait until queues and index of before the call are on disk."""
        changed = [queue for queue in list(self.queues.values()) if queue.start_sync()]
        for queue in changed:
            self._unsynced_folders.update(queue.sync())
        # Many queues share a topic's folder, and all of them those above it.
        for folder in sorted(self._unsynced_folders, key=lambda folder: len(folder.parts), reverse=True):
            self._unsynced_folders.discard(folder)
            try:
                fileutil.sync_directory(folder)
            except StoreError:
                if folder.is_dir():  # Else its topic was deleted meanwhile.
                    self._unsynced_folders.add(folder)
                    raise
        self.index.sync()

    def close(self) -> None:
        """Let go of the files and the thread; what is not written is not written any more."""
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
