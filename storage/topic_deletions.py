"""Deleted topics whose records are still in the log, and the journal of deletions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from raymq.storage.checkpointer import Checkpointer
from raymq.storage.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.log.retention import FileRemover
from raymq.storage.store_parts import StoreParts

#: A shorter journal is not compacted.
_LEAST_JOURNAL_BYTES: Final = 64 << 10


class TopicDeletions:
    """Which topics of an open store were deleted at which log offsets.

    A deletion counts as long as the log has a record from before it: later openings make no queue from such records. It
    belongs to the store's thread, except for `sync`.
    """

    def __init__(
        self, parts: StoreParts, remover: FileRemover, checkpointer: Checkpointer, sync_progress: Callable[[], None]
    ) -> None:
        """Use the store's parts; `sync_progress` syncs the groups' offsets, on any thread."""
        self._parts = parts
        self._remover = remover
        self._checkpointer = checkpointer
        self._sync_progress = sync_progress
        self._settling, self._deleting = threading.Lock(), threading.Lock()
        self._count = 0
        self._shorten_at = _LEAST_JOURNAL_BYTES
        #: The compacted journal has no deletions up to the first offset. Neither it nor the newest checkpoint has those
        #: up to the second offset, so no start will check whether a table has applied them.
        self._settled_tells_from = self._untold_before = 0

    def begin(self) -> None:
        """Make the journal contain all deletions that count.

        The checkpoint contains them, too, but either file may be damaged.
        """
        log_min, journal = self._parts.log.min_offset, self._parts.deletions
        listed = [(topic, end) for topic, end in self._parts.deleted_topics.items() if end > log_min]
        if list(journal.entries) != listed or journal.damage:
            journal.rewrite(listed)
        journal.entries.clear()
        journal.behind.clear()
        self._shorten_at = max(_LEAST_JOURNAL_BYTES, 2 * journal.length)

    def add(self, topic: str) -> None:
        """Delete the topic's queues, its groups' offsets and its settings; `sync` makes it durable.

        Raises:
            StoreFull, StoreFailed: the topic is unchanged.
        """
        failpoint("delete_topic.before_state")
        parts = self._parts
        log_end = parts.log.max_offset
        journal, deleted = parts.deletions, parts.deleted_topics
        for known in [known for known, end in deleted.items() if end <= parts.log.min_offset]:
            del deleted[known]  # all its records have expired
        if self._untold_before:
            parts.progress.prune_deletions(self._untold_before)
            parts.in_flight.prune_deletions(self._untold_before)
            self._untold_before = 0
        self._shorten()
        journal.append((topic, log_end))
        with self._deleting:  # never held during disk I/O
            self._count += 1
            parts.dispatcher.unsynced_deletions.add(topic)
        failpoint("delete_topic.before_queues")
        try:
            moved = parts.dispatcher.delete_topic(topic)
        except StoreError:
            journal.undo_append()
            raise
        for aside in moved:
            self._remover.moved(parts.dispatcher.folder_of(topic), aside)
        self._remover.add([(folder, None) for folder in moved])
        deleted[topic] = log_end
        failpoint("delete_topic.before_progress")
        parts.progress.forget_topic(topic, log_end)
        parts.in_flight.forget_topic(topic, log_end)
        failpoint("delete_topic.before_settings")
        parts.topic_configs.delete_soon(topic)

    def sync(self) -> None:
        """Bring deletions and the related changes of offsets to disk. Any thread."""
        unsure_topics, journal = self._parts.dispatcher.unsynced_deletions, self._parts.deletions
        with self._settling:
            with self._deleting:
                unsynced_deletions, count = unsure_topics.copy(), self._count
            if unsynced_deletions:
                try:
                    journal.sync()
                    self._sync_progress()
                except StoreBusy:
                    raise
                except StoreFailed as error:
                    self._parts.health.fail(error)
                    raise
                with self._deleting:
                    if count == self._count:  # else one of these topics may have been deleted again meanwhile
                        unsure_topics.clear()
            if journal.is_rotated:
                with contextlib.suppress(StoreFull, StoreBusy):  # nothing is lost, and the next call tries again
                    length = journal.compact(list(self._parts.deleted_topics.copy().items()))
                    self._shorten_at = max(_LEAST_JOURNAL_BYTES, 2 * length)
                    self._untold_before = min(self._checkpointer.deletions_from, self._settled_tells_from)

    def last_of(self, topic: str) -> int:
        """Return the log's end at the last deletion of a topic of that name.

        Return 0 if no such topic was deleted, or if the deletion has expired.
        """
        return self._parts.deleted_topics.get(topic, 0)

    def _shorten(self) -> None:
        """Start compacting the journal once much of it is repeated or has expired.

        `sync` writes the compacted journal.
        """
        journal = self._parts.deletions
        # A checkpoint from before an expired deletion still lists the topic's queues, so a newer one has to exist.
        log_min = self._parts.log.min_offset
        if journal.length >= self._shorten_at and self._checkpointer.saved_to >= log_min and not journal.is_rotated:
            with contextlib.suppress(StoreFull, StoreBusy):  # the next deletion tries again
                journal.rotate()
                self._settled_tells_from = log_min
