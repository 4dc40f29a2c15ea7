"""Write checkpoints of an open store.

A checkpoint records what is on disk and from which offset the next recovery has to read the log.

A checkpoint is RocketMQ's `checkpoint` file (three timestamps and two offsets) and RayMQ's own state file. The state
file records up to which offsets the queues and the index are on disk, and which topics were deleted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from raymq.storage import store_paths as layout_of
from raymq.storage.clock import boot_id
from raymq.storage.errors import StoreBusy, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.log.checkpoint import Checkpoint, CheckpointState
from raymq.storage.log.high_watermark import HighWatermark
from raymq.storage.retention_clock import RetentionClock
from raymq.storage.store_parts import StoreParts


class Checkpointer:
    """Writes the checkpoints of one store, one at a time.

    Attributes:
        saving_lock: held while a checkpoint is written; no file of the store may be removed meanwhile.
        saved_to: `CheckpointState.dispatched_to` of the last checkpoint.
    """

    def __init__(
        self, parts: StoreParts, sync_tables: Callable[[], None], confirmed: HighWatermark, clock: RetentionClock
    ) -> None:
        """Keep the parts that a checkpoint covers.

        `sync_tables` brings offsets, settings and deletions to disk and may run on any thread.
        """
        self._high_watermark = confirmed
        self._parts = parts
        self._sync_tables = sync_tables
        self._clock = clock
        self.saving_lock: Final = threading.Lock()
        self.saved_to = 0

    def save(self) -> None:
        """Bring log, queues, index and offsets to disk, then write the checkpoint. Any thread.

        Raises:
            StoreFull: no checkpoint was written, the last one stays valid.
            StoreFailed: the store refuses writes from now on.
        """
        try:
            self._save()
        except StoreFailed as error:
            self._parts.health.fail(error)
            raise

    def checkpoint_up_to(self, place: int) -> int:
        """Return the checkpointed log offset, at most `place`; write a new checkpoint if needed.

        If the disk has no room for a new checkpoint, the offset of the last one counts. Raise StoreFailed as `save`
        does.
        """
        if self.saved_to < place:
            with contextlib.suppress(StoreFull, StoreBusy):
                self.save()
        return min(place, self.saved_to)

    def _save(self) -> None:
        parts, log, dispatcher = self._parts, self._parts.log, self._parts.dispatcher
        with self.saving_lock:
            # Read all values of the checkpoint before anything is brought to disk, so that it claims nothing too new.
            log_min = log.min_offset
            deleted = {t: p for t, p in parts.deleted_topics.copy().items() if p > log_min}
            to = dispatcher.dispatched_to
            timestamp_ms = log.last_timestamp_ms
            index = dispatcher.index.extent()
            queues = dispatcher.max_offsets()
            confirmed = self._high_watermark.replicated_to
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
            log.recovery_start.note(to)
            walk_from = log.recovery_start.before(to)
            state = CheckpointState(
                *(to, index.end_physical, index, queues, deleted, geometry, boot_id(), walk_from), self._clock.boot_ms
            )
            state.save(parts.paths.state)
            self.saved_to = to
            failpoint("checkpoint.after_state")
