"""Topics that were deleted while records of theirs are still in the log, and the journal that tells of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from raymq.storage.assembly import Parts
from raymq.storage.checkpointing import Checkpointer
from raymq.storage.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.log.retention import Remover

#: A shorter journal is not written anew.
_LEAST_JOURNAL_BYTES: Final = 64 << 10


class TopicDeletions:
    """Which topics of an open store were deleted where in its log.

    A deletion counts as long as the log has a record from before it: no queue is made of those by a later opening.
    Belongs to the store's thread, but for `sync`.
    """

    def __init__(
        self, parts: Parts, remover: Remover, checkpointer: Checkpointer, sync_progress: Callable[[], None]
    ) -> None:
        """`sync_progress` brings to disk what groups have come to; any thread."""
        self._parts = parts
        self._remover = remover
        self._checkpointer = checkpointer
        self._sync_progress = sync_progress
        self._settling, self._deleting = threading.Lock(), threading.Lock()
        self._count = 0
        self._shorten_at = _LEAST_JOURNAL_BYTES
        #: Deletions up to these places are not told by the settled journal, and neither by it nor by the newest state:
        #: no start will ask whether a table knows of the latter.
        self._settled_tells_from = self._untold_before = 0

    def begin(self) -> None:
        """Have the journal tell of all deletions that count; the state does so, too, but one of them may be damaged."""
        log_min, journal = self._parts.log.min_offset, self._parts.deletions
        told = [(topic, end) for topic, end in self._parts.deleted_topics.items() if end > log_min]
        if list(journal.entries) != told or journal.damage:
            journal.rewrite(told)
        journal.entries.clear()
        journal.behind.clear()
        self._shorten_at = max(_LEAST_JOURNAL_BYTES, 2 * journal.length)

    def add(self, topic: str) -> None:
        """Forget the topic's queues, what groups were at in them, and its settings; `sync` brings that to disk.

        Raises:
            StoreFull, StoreFailed: the topic is there as before.
        """
        failpoint("delete_topic.before_state")
        parts = self._parts
        log_end = parts.log.max_offset
        journal, deleted = parts.deletions, parts.deleted_topics
        for known in [known for known, end in deleted.items() if end <= parts.log.min_offset]:
            del deleted[known]  # all that it had has expired
        if self._untold_before:
            parts.progress.forget_deletions(self._untold_before)
            parts.in_flight.forget_deletions(self._untold_before)
            self._untold_before = 0
        self._shorten()
        journal.append((topic, log_end))
        with self._deleting:  # never held while the disk works
            self._count += 1
            parts.dispatcher.unsure.add(topic)
        failpoint("delete_topic.before_queues")
        try:
            moved = parts.dispatcher.delete_topic(topic)
        except StoreError:
            journal.take_back()
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
        """Bring to disk that topics were deleted, and what groups had come to in them with that. Any thread."""
        unsure_topics, journal = self._parts.dispatcher.unsure, self._parts.deletions
        with self._settling:
            with self._deleting:
                unsure, count = unsure_topics.copy(), self._count
            if unsure:
                try:
                    journal.sync()
                    self._sync_progress()
                except StoreBusy:
                    raise
                except StoreFailed as error:
                    self._parts.health.fail(error)
                    raise
                with self._deleting:
                    if count == self._count:  # else one of them may have been deleted once more
                        unsure_topics.clear()
            if journal.is_diverted:
                with contextlib.suppress(StoreFull, StoreBusy):  # nothing is lost, and the next call tries again
                    told = journal.settle(list(self._parts.deleted_topics.copy().items()))
                    self._shorten_at = max(_LEAST_JOURNAL_BYTES, 2 * told)
                    self._untold_before = min(self._checkpointer.tells_from, self._settled_tells_from)

    def last_of(self, topic: str) -> int:
        """Where the log ended when a topic of that name was deleted last; 0 if none ever was, or that has expired."""
        return self._parts.deleted_topics.get(topic, 0)

    def _shorten(self) -> None:
        """Have the journal say in less what it says, once much of that is said again later or has expired.

        It is written by `sync`.
        """
        journal = self._parts.deletions
        # A state of before what has expired was deleted still tells of its queues.
        log_min = self._parts.log.min_offset
        if journal.length >= self._shorten_at and self._checkpointer.saved_to >= log_min and not journal.is_diverted:
            with contextlib.suppress(StoreFull, StoreBusy):  # the next deletion tries again
                journal.divert()
                self._settled_tells_from = log_min
