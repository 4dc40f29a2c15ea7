"""Stage records that wait for a delivery time or a delay level after their commit.

Their waiting copies are made when they are staged. The commit appends these copies like any other records, only to the
queue in which they wait. So a crash during a commit is not a special case for them, and the wait of a delay level
begins with the commit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.copies.record_copy import join
from raymq.actors.broker.core.delay.schedule_message_service import ScheduleMessageService
from raymq.actors.broker.core.delay.timer_message_store import TimerMessageStore
from raymq.actors.broker.core.delay.timer_records import TIMER_QUEUE
from raymq.actors.errors import InvalidInput
from raymq.storage.cooperative_steps import Steps, map_steps
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, decode

#: How many records are re-encoded in one step of the event loop: some 30 us each.
_AT_ONCE: Final = 64


def delay_chunk_steps(
    schedule: ScheduleMessageService,
    timers: TimerMessageStore,
    topic_queue: tuple[str, int],
    records: memoryview,
    sizes: npt.NDArray[np.int32],
) -> Steps[tuple[tuple[str, int], memoryview, npt.NDArray[np.int32]]]:
    """Copy delayed records for their waiting queue, in steps; return queue, copies and sizes.

    The given records belong to `topic_queue` and must be valid.

    Raises:
        InvalidInput: not all of them have a delivery time, or not all the same delay level.
        MessageIllegal: a record cannot wait as it is: its time is too far ahead, or there is no room for the properties
            of its copies.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = (ends - sizes).tolist()
    waits_a_level = names.DELAY in decode(records, check_crc=False).properties

    def defer_record(start: int) -> tuple[int, bytes]:
        record = decode(records, start, check_crc=False)
        if (names.DELAY in record.properties) is not waits_a_level:
            raise _mixed(record)
        return (
            schedule.defer_record(record, topic_queue)
            if waits_a_level
            else (0, timers.defer_record(record, topic_queue)[1])
        )

    deferred = yield from map_steps(defer_record, starts, _AT_ONCE)
    levels = {level for level, _ in deferred}
    if len(levels) > 1:
        raise InvalidInput("records", "one delay level per chunk", sorted(levels))
    joined, new_sizes = join([copy for _, copy in deferred])
    waiting_queue = (SCHEDULE_TOPIC, levels.pop() - 1) if waits_a_level else TIMER_QUEUE
    return waiting_queue, memoryview(joined), new_sizes


def _mixed(record: Record) -> InvalidInput:
    return InvalidInput(
        "records", "a delivery time in every record, or a delay level in every record", record.unique_key
    )
