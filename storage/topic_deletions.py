"""Delete topics of an open store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from raymq.storage.checkpointer import Checkpointer
from raymq.storage.errors import StoreBusy, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.log.retention import FileRemover
from raymq.storage.store_parts import StoreParts


class TopicDeletions:
    """Which topics of an open store were deleted at which log offsets.

    A deletion is one event of the state journal. It counts as long as the log has a record from before it: later
    openings make no queue from such records. Belongs to the store's thread, except for `sync`.
    """

    def __init__(self, parts: StoreParts, remover: FileRemover, checkpointer: Checkpointer) -> None:
        self._parts = parts
        self._remover = remover
        self._checkpointer = checkpointer
        self._deleting = threading.Lock()
        self._count = 0
        #: The number of the newest event of a deletion that `follow` has seen.
        self._followed = 0

    def add(self, topic: str) -> None:
        """Delete the topic's queues, its groups' offsets and its settings; `sync` makes it durable.

        Raises:
            StoreFull, StoreFailed: the topic is unchanged.
        """
        failpoint("delete_topic.before_state")
        parts = self._parts
        table, dispatcher = parts.tables.deleted_topics, parts.dispatcher
        self._expire()
        with self._deleting:  # never held during disk I/O
            self._count += 1
            dispatcher.unsynced_deletions.add(topic)
        moved: list[Path] = []

        def move_queues() -> None:
            failpoint("delete_topic.before_queues")
            moved.extend(dispatcher.delete_topic(topic))

        parts.journal.append(table, table.deletion(topic, parts.log.max_offset), before_apply=move_queues)
        failpoint("delete_topic.after_state")
        self._remove(topic, moved)

    def follow(self) -> None:
        """Delete the queues of topics that the master has deleted.

        Raise StoreFull or StoreFailed if a folder could not be moved; the next call, or opening, does it.
        """
        parts, dispatcher = self._parts, self._parts.dispatcher
        newest = parts.journal.newest_of(parts.tables.deleted_topics)
        if newest == self._followed:
            return
        for topic, place in parts.deleted_topics.items():
            if place < parts.log.min_offset:
                continue  # an earlier deletion: a recreated topic may have a queue without messages
            ends = [dispatcher.queues[topic, queue_id].end_physical() for queue_id in dispatcher.queues.of(topic)]
            if ends and max(ends) <= place:  # else these are queues of a topic that was recreated
                with self._deleting:
                    self._count += 1
                    dispatcher.unsynced_deletions.add(topic)
                self._remove(topic, dispatcher.delete_topic(topic))
        self._followed = newest

    def _remove(self, topic: str, moved: Sequence[Path]) -> None:
        """Remove moved folders of a topic's queues, on another thread."""
        for aside in moved:
            self._remover.moved(self._parts.dispatcher.folder_of(topic), aside)

    @property
    def has_unsynced(self) -> bool:
        """Return True if deletions are not on disk."""
        return bool(self._parts.dispatcher.unsynced_deletions)

    def sync(self) -> None:
        """Bring deletions to disk. Any thread. Raise StoreFailed if they may not be."""
        unsynced_topics = self._parts.dispatcher.unsynced_deletions
        with self._deleting:
            is_unsynced, count = bool(unsynced_topics), self._count
        if is_unsynced:
            self._parts.journal.sync()
            with self._deleting:
                if count == self._count:  # else one of these topics may have been deleted again meanwhile
                    unsynced_topics.clear()

    def last_of(self, topic: str) -> int:
        """Return the log's end at the last deletion of a topic of that name.

        Return 0 if no such topic was deleted, or if the deletion is forgotten.
        """
        return self._parts.deleted_topics.get(topic, 0)

    def _expire(self) -> None:
        """Forget the oldest deletions before the log's begin, if there are too many."""
        # A checkpoint from before an expired deletion still lists the topic's queues, so a newer one has to exist.
        log_min = self._parts.log.min_offset
        if self._checkpointer.saved_to >= log_min:
            with contextlib.suppress(StoreFull, StoreBusy):  # the next deletion tries again
                self._parts.tables.deleted_topics.expire(log_min)
