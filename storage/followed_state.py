"""What of its master's state the log of a replica's open store goes by: deletions of topics, and delay levels.

The other tables are not open while a store follows: `StateReplica` changes their files as the master did. These two
decide which queue entries are made of the log's bytes. So they are looked at before bytes come, which is when the
changes from before them have been made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from raymq.storage.assembly import Parts
from raymq.storage.errors import StoreFailed
from raymq.storage.log.delay_tables import DelayTables
from raymq.storage.log.retention import Remover
from raymq.storage.state import told_deletions

_Signature = tuple[tuple[int, int, int] | None, ...]


class NotDeleted(StoreFailed):
    """Topics were not deleted after all, or nobody tells any more that they were; their queues are gone.

    What a master knows of deletions is compared with what is known here where a snapshot comes.
    """


class FollowedState:
    """Of one store that follows; belongs to its thread.

    Attributes:
        changes: how many times state was changed; None: nobody counts, and every look looks at the files.
        master_begin: of topics that were deleted before this place of the log the master tells no more.
    """

    def __init__(self, parts: Parts, remover: Remover) -> None:
        self._parts = parts
        self._remover = remover
        self.changes: Callable[[], int] | None = None
        self.master_begin = 0
        self._seen_changes: int | None = None
        self._deletions = told_deletions.files_of(parts.paths.root)
        self._seen_deletions = _signature(self._deletions)
        self._seen_delays = _signature([parts.paths.delay_levels])

    def look(self) -> None:
        """Heed what was changed since the last look.

        Raises:
            NotDeleted: a topic was not deleted after all. Opening the store behind a snapshot makes its queues anew.
            StoreBusy: it cannot be read now.
        """
        changes = None if self.changes is None else self.changes()
        if changes is not None and changes == self._seen_changes:
            return
        deletions = _signature(self._deletions)
        if deletions != self._seen_deletions:
            self._heed_deletions()
            self._seen_deletions = deletions
        delays = _signature([self._parts.paths.delay_levels])
        if delays != self._seen_delays:
            parts = self._parts
            parts.dispatcher.delays = DelayTables(parts.paths.delay_levels, parts.config.delay_levels)
            self._seen_delays = delays
        self._seen_changes = changes

    def _heed_deletions(self) -> None:
        parts, dispatcher = self._parts, self._parts.dispatcher
        told, known = told_deletions.told(parts.paths.root), parts.deleted_topics
        told_from = max(parts.log.min_offset, self.master_begin)
        never = [t for t, place in known.items() if place > max(told_from, told.get(t, -1))]
        if never or parts.paths.rebuild_queues.exists():
            raise NotDeleted(f"topics were not deleted after all, and their queues are gone: {sorted(never)}")
        new = {topic: place for topic, place in told.items() if place > known.get(topic, -1)}
        if new:  # After a loss of power the log must not have a topic of that name made anew, and this be unknown.
            told_deletions.sync(parts.paths.root)
        for topic, place in new.items():
            ends = [dispatcher.queues[topic, queue_id].end_physical() for queue_id in dispatcher.queues.of(topic)]
            if max(ends, default=place + 1) <= place:  # else these are queues of a topic that was made anew
                moved = dispatcher.delete_topic(topic)
                for aside in moved:
                    self._remover.moved(dispatcher.folder_of(topic), aside)
                self._remover.add([(folder, None) for folder in moved])
            known[topic] = place
        for topic in [topic for topic, place in known.items() if place <= parts.log.min_offset and topic not in told]:
            del known[topic]


def _signature(paths: list[Path]) -> _Signature:
    """Another one after each change of the files."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return tuple(found)
