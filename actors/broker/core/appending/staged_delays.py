"""Staged records that are to wait for a time or a level after their commit.

They become what waits when they are staged: their commit appends them like any others, only to the queue in which they
wait. So a crash in the middle of a commit is no other case for them, and a level's wait begins with the commit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.copies.rewriting import join
from raymq.actors.broker.core.delay.schedule import Schedule
from raymq.actors.broker.core.delay.timer_records import TIMER_QUEUE
from raymq.actors.broker.core.delay.timers import Timers
from raymq.actors.errors import InvalidInput
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, decode
from raymq.storage.steps import Steps, mapped

#: Records that are made anew in one step of the loop: some 30 us each.
_AT_ONCE: Final = 64


def waiting_chunk(
    schedule: Schedule, timers: Timers, topic_queue: tuple[str, int], records: memoryview, sizes: npt.NDArray[np.int32]
) -> Steps[tuple[tuple[str, int], memoryview, npt.NDArray[np.int32]]]:
    """The topic_queue, the records and their sizes that records of `topic_queue`, which are sound, are to be staged as.

    Raises:
        InvalidInput: they do not all wait for a time, or all for the same level.
        MessageIllegal: one cannot wait as it is: a time too far ahead, or no room for what its copies get.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = (ends - sizes).tolist()
    waits_a_level = names.DELAY in decode(records, check_crc=False).properties

    def put_off(start: int) -> tuple[int, bytes]:
        record = decode(records, start, check_crc=False)
        if (names.DELAY in record.properties) is not waits_a_level:
            raise _mixed(record)
        return schedule.put_off(record, topic_queue) if waits_a_level else (0, timers.put_off(record, topic_queue)[1])

    made = yield from mapped(put_off, starts, _AT_ONCE)
    levels = {level for level, _ in made}
    if len(levels) > 1:
        raise InvalidInput("records", "one delay level in a chunk", sorted(levels))
    joined, new_sizes = join([copy for _, copy in made])
    waiting_queue = (SCHEDULE_TOPIC, levels.pop() - 1) if waits_a_level else TIMER_QUEUE
    return waiting_queue, memoryview(joined), new_sizes


def _mixed(record: Record) -> InvalidInput:
    return InvalidInput("records", "a time in each, or a delay level in each", record.unique_key)
