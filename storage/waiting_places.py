"""What waits for its time in the oldest log files, as far as a directory that is not open tells it.

A running broker stores such messages anew before their log files go. Before a store is opened there is nobody to do
that, and no room for it: so the files in which one waits, or may wait for all that is on disk, stay.
"""

from __future__ import annotations

from typing import Final

from raymq.storage.config import StoreConfig
from raymq.storage.delay_levels import SCHEDULE_TOPIC, TIMER_TOPIC
from raymq.storage.errors import StoreCorrupt
from raymq.storage.log.checkpoint import State
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.paths import Paths
from raymq.storage.tables.progress import Progress
from raymq.storage.tables.remains import Remains
from raymq.storage.timers.oldest_waiting import oldest_waiting

#: So many entries of a queue are looked at together.
_LOOKED_AT: Final = 1 << 16


def first_waiting(paths: Paths, config: StoreConfig, state: State, *, log_min: int, before: int) -> int:
    """The place in the log of the oldest message that may wait, of those before `before`; that one if there is none.

    Only what the last checkpoint brought to disk counts, so that it holds after a loss of power, too.

    Args:
        before: at most `State.dispatched_to`.

    Raises:
        StoreCorrupt: the progress of the delay levels cannot be read. StoreBusy, StoreFailed: not now.
    """
    remains = Remains(state.dispatched_to, memory_lost=True)
    progress = Progress(paths.config, paths.journal, writable=False, remains=remains)
    found = [before]
    for queue_id in state.queues.get(SCHEDULE_TOPIC, {}):
        begin = progress.delays.get(queue_id + 1, 0)
        found.append(_first_from(paths, config, state, (SCHEDULE_TOPIC, queue_id), begin, log_min, before))
    timers = TIMER_TOPIC, 0
    if timers[1] in state.queues.get(timers[0], {}):
        place, known_to = oldest_waiting(paths.timers, log_min=log_min, before=before, log_end=state.dispatched_to)
        found += [place, _first_from(paths, config, state, timers, known_to, log_min, before)]
    return min(found)


def _first_from(
    paths: Paths, config: StoreConfig, state: State, topic_queue: tuple[str, int], begin: int, log_min: int, before: int
) -> int:
    """The place of the queue's first message from offset `begin` on; `log_min` if the queue is not what it was."""
    topic, queue_id = topic_queue
    end = state.queues[topic][queue_id]
    folder = paths.consume_queue / topic / str(queue_id)
    try:
        queue = ConsumeQueue(folder, config.consume_queue_file_entries, writable=False, whole_to=end)
    except StoreCorrupt:
        return log_min
    try:
        if queue.max_offset < end:
            return log_min
        for first in range(max(begin, queue.min_offset), end, _LOOKED_AT):
            for _, place in queue.messages(first, min(end, first + _LOOKED_AT)):
                if place >= log_min:
                    return min(place, before)
        return before
    finally:
        queue.close()
