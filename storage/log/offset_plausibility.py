"""Whether the queue offsets of walked records can be: no CRC covers them, and a wrong one would tear its queue apart.

A queue cannot hold more messages than there was room for in the log, neither before a record nor between two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raymq.storage.records import record as layout
from raymq.storage.records.batch import Batch


class NewestMessages:
    """The newest message of each queue that a walk over the log has met."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}

    def sound_records(self, batch: Batch, queued: npt.NDArray[np.bool_]) -> int:
        """How many records of the batch from the first on can be where they say; these are remembered.

        Args:
            queued: which of them belong to a queue at all.
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
