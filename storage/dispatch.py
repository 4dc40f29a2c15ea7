"""From appended records to what is derived from them: consume queues and the index of keys.

Everything here can be rebuilt from the commit log, and recovery does so with the same functions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage import fileutil
from raymq.storage import record as layout
from raymq.storage.consume_queue import ConsumeQueue, make_entries
from raymq.storage.errors import QueueNotFound
from raymq.storage.java_hash import index_hash, index_hashes, tags_code_of_bytes
from raymq.storage.key_index import KeyIndex
from raymq.storage.record_batch import TOPIC_PATTERN, Batch, Int64s, keys_of, tags_of

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_QUEUE_FOLDER = re.compile(r"0|[1-9][0-9]{0,9}")


class Dispatcher:
    """The queues and the index of one store. Belongs to the store's writer; `sync` to any thread."""

    def __init__(
        self, folder: Path, file_entries: int, index: KeyIndex, delays_ms: tuple[int, ...], *, writable: bool
    ) -> None:
        self.index = index
        self._folder = folder
        self._file_entries = file_entries
        self._delays_ms = delays_ms
        self._writable = writable
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        for topic, queue_id, path in _queue_folders(folder):
            self.queues[topic, queue_id] = ConsumeQueue(path, file_entries, writable=writable)
        #: The log up to here is dispatched.
        self.dispatched_to = 0

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; QueueNotFound if nothing was ever written to it."""
        try:
            return self.queues[topic, queue_id]
        except KeyError:
            raise QueueNotFound(f"topic {topic} has no messages in queue {queue_id}") from None

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new if need be (its folder appears with its first entry)."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            folder = self._folder / topic / str(queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(folder, self._file_entries, writable=self._writable)
        return queue

    def assign(self, batch: Batch) -> Int64s:
        """The queue offsets that a new batch's records get; their entries' room is reserved (StoreFull if not)."""
        offsets = np.empty(len(batch), np.int64)
        for group in batch.groups:
            queue = self.open(group.topic, group.queue_id)
            count = len(batch) if group.members is None else len(group.members)
            queue.reserve(count)
            offsets[slice(None) if group.members is None else group.members] = np.arange(
                queue.max_offset, queue.max_offset + count
            )
        return offsets

    def dispatch(
        self,
        batch: Batch,
        queue_offsets: Int64s,
        physical_offsets: Int64s,
        timestamps_ms: Int64s,
        *,
        queued: npt.NDArray[np.bool_] | None = None,
        index_after: int = -1,
    ) -> None:
        """Write the queue entries and keys of records that are in the log.

        Args:
            queued: which records have an entry in a queue; None = all.
            index_after: keys of records up to this physical offset are in the index already.
        """
        tags_codes = batch.tags_codes()
        entries = make_entries(physical_offsets, batch.sizes, tags_codes)
        for group in batch.groups:
            members = np.arange(len(batch)) if group.members is None else group.members
            if group.topic == SCHEDULE_TOPIC:
                entries["tags_code"][members] = timestamps_ms[members] + self.delay_ms(group.queue_id)
            if queued is not None:
                members = members[queued[members]]
                if not len(members):
                    continue
            queue = self.open(group.topic, group.queue_id)
            offsets = queue_offsets[members]
            chosen = entries[members]
            # In one run unless the log has lost some in between.
            cuts = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
            for start, stop in zip([0, *cuts], [*cuts, len(offsets)], strict=True):
                queue.put(int(offsets[start]), chosen[start:stop])
        self._index(batch, physical_offsets, timestamps_ms, index_after)

    def dispatch_one(
        self,
        queue: ConsumeQueue,
        topic: str,
        queue_id: int,
        properties: bytes,
        size: int,
        physical_offset: int,
        timestamp_ms: int,
    ) -> None:
        """The same for one new record of a known queue."""
        if topic == SCHEDULE_TOPIC:
            tags_code = timestamp_ms + self.delay_ms(queue_id)
        else:
            tags_code = tags_code_of_bytes(tags_of(properties)) if b"TAGS\x01" in properties else 0
        queue.append(physical_offset, size, tags_code)
        hashes = [index_hash(f"{topic}#{key.decode('utf-8', 'replace')}") for key in keys_of(properties)]
        self.index.put_record(hashes, physical_offset, timestamp_ms)

    def delay_ms(self, queue_id: int) -> int:
        """The delay of a queue of the schedule topic; beyond the last level the last one's."""
        return self._delays_ms[min(queue_id, len(self._delays_ms) - 1)]

    def _index(self, batch: Batch, physical_offsets: Int64s, timestamps_ms: Int64s, index_after: int) -> None:
        first = int(np.searchsorted(physical_offsets, index_after, "right"))
        rolled_back = (batch.sys_flags & layout.SYS_FLAG_TRANSACTION_MASK) == layout.SYS_FLAG_TRANSACTION_ROLLBACK
        skip_rolled_back = bool(rolled_back.any())
        keys: list[bytes] = []
        counts = np.zeros(len(batch), np.int64)
        properties = batch.read_properties()
        for i in range(first, len(batch)):
            if not (skip_rolled_back and rolled_back[i]):
                found = keys_of(properties[i])
                counts[i] = len(found)
                keys += found
        if not keys:
            return
        owners = np.repeat(np.arange(len(batch)), counts)
        topics = {group.topic for group in batch.groups}
        if len(topics) == 1:
            hashes = index_hashes(f"{batch.groups[0].topic}#", keys)
        else:
            hashes = np.empty(len(keys), np.int32)
            for group in batch.groups:
                members = np.arange(len(batch)) if group.members is None else group.members
                chosen = np.flatnonzero(np.isin(owners, members))
                hashes[chosen] = index_hashes(f"{group.topic}#", [keys[k] for k in chosen.tolist()])
        self.index.put(hashes, physical_offsets[owners], timestamps_ms[owners])

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues with their files."""
        for key in [key for key in self.queues if key[0] == topic]:
            self.queues.pop(key).close()
        if TOPIC_PATTERN.fullmatch(topic.encode()):
            fileutil.remove_tree(self._folder / topic)

    def drop_deleted(self, deleted: dict[str, int]) -> None:
        """Remove queues whose topic was deleted when the log ended there, if nothing came in since.

        They are still here if the process died in the middle of the deletion.
        """
        for topic, log_end in deleted.items():
            ends = [queue.end_physical() for (name, _), queue in self.queues.items() if name == topic]
            if ends and max(ends) <= log_end:
                self.delete_topic(topic)

    def sync(self) -> None:
        """Wait until queues and index of before the call are on disk."""
        for queue in list(self.queues.values()):
            queue.sync()
        self.index.sync()

    def close(self) -> None:
        """Let go of the files."""
        for queue in self.queues.values():
            queue.close()
        self.index.close()


def _queue_folders(folder: Path) -> list[tuple[str, int, Path]]:
    found: list[tuple[str, int, Path]] = []
    if folder.is_dir():
        for topic in sorted(folder.iterdir()):
            if topic.is_dir() and TOPIC_PATTERN.fullmatch(topic.name.encode()):
                paths = [p for p in sorted(topic.iterdir()) if p.is_dir() and _QUEUE_FOLDER.fullmatch(p.name)]
                found += [(topic.name, int(path.name), path) for path in paths]
    return found
