"""Apply the master's topic deletions and delay levels to a replica's open log.

While an open store follows a master, the other tables are not open: `StateReplica` changes their files as the master
did. Topic deletions and delay levels decide which queue entries are made from the log's bytes. So both are read before
bytes are appended; by then the earlier state changes have been applied.
"""

from __future__ import annotations

from collections.abc import Callable

from raymq.storage.errors import StoreFailed
from raymq.storage.log.retention import FileRemover
from raymq.storage.state import topic_deletion_journal
from raymq.storage.store_parts import StoreParts


class DeletionRolledBack(StoreFailed):
    """Topic deletions are undone or no longer confirmed, but the topics' queues are gone.

    When a snapshot arrives, the deletions that the master records are compared with those recorded here.
    """


class ReplicaStateWatcher:
    """Watches the state files of one store that follows a master.

    Belongs to the store's thread.

    Attributes:
        changes: returns how many state changes were applied; None: the files are checked at each `refresh`.
        master_begin: the master no longer reports topics that were deleted before this log offset.
    """

    def __init__(self, parts: StoreParts, remover: FileRemover) -> None:
        self._parts = parts
        self._remover = remover
        self.changes: Callable[[], int] | None = None
        self.master_begin = 0
        self._seen_changes: int | None = None
        self._tail = topic_deletion_journal.JournalTail(parts.paths.root)
        self._tail.read()
        self._seen_deletions = dict(self._tail.deleted_topics.places)

    def refresh(self) -> None:
        """Apply the changes of the state files since the last call.

        Raises:
            DeletionRolledBack: a topic was not deleted after all. Opening the store after a snapshot rebuilds its
                queues.
            StoreBusy: the files cannot be read now.
        """
        changes = None if self.changes is None else self.changes()
        if changes is not None and changes == self._seen_changes:
            return
        self._tail.read()
        deletions = dict(self._tail.deleted_topics.places)
        if deletions != self._seen_deletions:
            self._apply_deletions(deletions)
            self._seen_deletions = deletions
        levels, own = self._tail.delay_levels.saved, self._parts.tables.delay_levels
        if levels and levels != own.saved:
            own.apply((levels,))
        self._seen_changes = changes

    def _apply_deletions(self, deleted: dict[str, int]) -> None:
        parts, dispatcher, known = self._parts, self._parts.dispatcher, self._parts.deleted_topics
        listed_from = max(parts.log.min_offset, self.master_begin)
        never = [t for t, place in known.items() if place > max(listed_from, deleted.get(t, -1))]
        if never or parts.paths.rebuild_queues.exists():
            raise DeletionRolledBack(
                f"the deletion of topics was undone after their queues were removed: {sorted(never)}"
            )
        new = {topic: place for topic, place in deleted.items() if place > known.get(topic, -1)}
        if new:  # Else after a power loss the log could have a recreated topic while its deletion is unknown.
            topic_deletion_journal.sync(parts.paths.root)
        for topic, place in new.items():
            ends = [dispatcher.queues[topic, queue_id].end_physical() for queue_id in dispatcher.queues.of(topic)]
            if max(ends, default=place + 1) <= place:  # else these are queues of a topic that was recreated
                moved = dispatcher.delete_topic(topic)
                for aside in moved:
                    self._remover.moved(dispatcher.folder_of(topic), aside)
                self._remover.add([(folder, None) for folder in moved])
            known[topic] = place
        for topic in [
            topic for topic, place in known.items() if place <= parts.log.min_offset and topic not in deleted
        ]:
            del known[topic]
