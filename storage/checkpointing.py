"""Checkpoints of an open store: what is on disk, and from where the next opening has to look at the log.

A checkpoint is RocketMQ's (three times and two places) beside a state of ours, which says how far queues and index
are on disk, and which topics were deleted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from raymq.storage import paths as layout_of
from raymq.storage.assembly import Parts
from raymq.storage.clock import boot_id
from raymq.storage.errors import StoreBusy, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.log.checkpoint import Checkpoint, State
from raymq.storage.log.confirm_point import ConfirmPoint


class Checkpointer:
    """Writes checkpoints, one at a time.

    Attributes:
        under_way: held while one is written; no file of the store may vanish meanwhile.
        saved_to: `State.dispatched_to` of the last one.
        tells_from: its state tells of the deletions behind this place of the log; those before it have expired.
    """

    def __init__(self, parts: Parts, sync_tables: Callable[[], None], confirmed: ConfirmPoint) -> None:
        """`sync_tables` brings progress, settings and deletions to disk; any thread."""
        self._confirmed = confirmed
        self._parts = parts
        self._sync_tables = sync_tables
        self.under_way: Final = threading.Lock()
        self.saved_to = 0
        self.tells_from = 0

    def save(self) -> None:
        """Bring log, queues, index and progress to disk, then say so. Any thread.

        Raises:
            StoreFull: not done, the last one holds. StoreFailed: the store refuses writes from now on.
        """
        try:
            self._save()
        except StoreFailed as error:
            self._parts.health.fail(error)
            raise

    def reach(self, place: int) -> int:
        """Up to where, at most `place`, a checkpoint tells how far queues are: the last one, else a new one.

        Where there is no room for that it is the last one. StoreFailed as `save`.
        """
        if self.saved_to < place:
            with contextlib.suppress(StoreFull, StoreBusy):
                self.save()
        return min(place, self.saved_to)

    def _save(self) -> None:
        parts, log, dispatcher = self._parts, self._parts.log, self._parts.dispatcher
        with self.under_way:
            # Everything that the state says is read before anything is brought to disk.
            log_min = log.min_offset
            deleted = {t: p for t, p in parts.deleted_topics.copy().items() if p > log_min}
            to = dispatcher.dispatched_to
            timestamp_ms = log.last_timestamp_ms
            index = dispatcher.index.extent()
            queues = dispatcher.max_offsets()
            confirmed = self._confirmed.held
            failpoint("checkpoint.before_flush")
            log.flush()
            failpoint("checkpoint.before_queues")
            dispatcher.sync()
            failpoint("checkpoint.before_journal")
            self._sync_tables()
            failpoint("checkpoint.before_times")
            last = parts.checkpoint
            confirmed = last.confirm_offset if confirmed is None else min(confirmed, to)
            parts.checkpoint = Checkpoint(
                timestamp_ms, timestamp_ms, index.end_ms, last.master_flushed_offset, confirmed
            )
            parts.checkpoint.save(parts.paths.checkpoint)
            geometry = layout_of.geometry(parts.config)
            failpoint("checkpoint.before_state")
            log.walk_start.note(to)
            walk_from = log.walk_start.before(to)
            state = State(to, index.end_physical, index, queues, deleted, geometry, boot_id(), walk_from)
            state.save(parts.paths.state)
            self.saved_to, self.tells_from = to, log_min
            failpoint("checkpoint.after_state")
