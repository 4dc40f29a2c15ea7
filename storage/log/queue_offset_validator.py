"""Check that the queue offsets of walked records are possible.

No CRC covers queue offsets, and a wrong one would leave a gap in its queue. A queue cannot hold more messages than the
log had room for, neither before a record nor between two records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raymq.storage.records import record as layout
from raymq.storage.records.record_batch import Batch


class QueueOffsetValidator:
    """The newest message of each queue that a walk over the log has found."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}

    def count_plausible(self, batch: Batch, queued: npt.NDArray[np.bool_]) -> int:
        """Return how many of the batch's first records have a possible queue offset.

        These records are remembered for the next call.

        Args:
            queued: which records of the batch belong to a queue at all.
        """
        offsets, physical_offsets = batch.queue_offsets, batch.physical_offsets
        sound = len(batch)
        for group in batch.groups:
            members = np.flatnonzero(queued) if group.members is None else group.members[queued[group.members]]
            last, last_physical = self._newest.get((group.topic, group.queue_id), (0, 0))
            befores = np.append(last, offsets[members][:-1])
            room = physical_offsets[members] - np.append(last_physical, physical_offsets[members][:-1])
            wrong = (offsets[members] < 0) | (offsets[members] > befores + room // layout.MIN_RECORD_BYTES)
            if wrong.any():
                sound = min(sound, int(members[np.argmax(wrong)]))
        for group in batch.groups:
            members = np.flatnonzero(queued) if group.members is None else group.members[queued[group.members]]
            members = members[members < sound]
            if len(members):
                newest = int(members[-1])
                self._newest[group.topic, group.queue_id] = int(offsets[newest]), int(physical_offsets[newest])
        return sound
