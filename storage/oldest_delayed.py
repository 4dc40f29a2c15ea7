"""Find the oldest message of a closed store that waits for something.

A running broker appends such messages again before their log files are deleted. Before a store is opened that cannot be
done, and there is no room for it. So the log files stay in which a message waits, or may wait as far as the data on
disk shows.
"""

from __future__ import annotations

from typing import Final

from raymq.storage.config import StoreConfig
from raymq.storage.delay_levels import SCHEDULE_TOPIC, TIMER_TOPIC
from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.log.checkpoint import CheckpointState
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.state_opening import open_state
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.state_tables import StateTables
from raymq.storage.timers.oldest_pending_timer import find_oldest_pending

#: How many entries of a queue are read at once.
_LOOKED_AT: Final = 1 << 16


def oldest_delayed_offset(
    paths: StorePaths, config: StoreConfig, state: CheckpointState, *, log_min: int, before: int
) -> int:
    """Return the physical offset of the oldest message that may wait.

    Return `before` if no message before it waits. Only data that the last checkpoint brought to disk is used, so that
    the result also holds after a power loss.

    Args:
        before: at most `CheckpointState.dispatched_to`.

    Raises:
        StoreCorrupt: the tables cannot be read.
        StoreBusy, StoreFailed: they cannot be read now.
    """
    tables = StateTables()
    journal, _ = open_state(paths, tables, lambda _: None, writable=False)
    # Staged rows are on disk before the event that names them; the events themselves need not be.
    for path in fileutil.paths_in(paths.state_journal):
        sync_path(path)
    staged = tables.staged.begin()
    journal.clamp(RecoveryBounds(state.dispatched_to, memory_lost=True))
    found = [before] if staged is None else [before, max(staged, log_min)]
    for queue_id in state.queues.get(SCHEDULE_TOPIC, {}):
        begin = tables.delay_offsets.get(queue_id + 1) or 0
        found.append(_first_from(paths, config, state, (SCHEDULE_TOPIC, queue_id), begin, log_min, before))
    timers = TIMER_TOPIC, 0
    if timers[1] in state.queues.get(timers[0], {}):
        place, known_to = find_oldest_pending(paths.timers, log_min=log_min, before=before, log_end=state.dispatched_to)
        found += [place, _first_from(paths, config, state, timers, known_to, log_min, before)]
    return min(found)


def _first_from(
    paths: StorePaths,
    config: StoreConfig,
    state: CheckpointState,
    topic_queue: tuple[str, int],
    begin: int,
    log_min: int,
    before: int,
) -> int:
    """Return the physical offset of the queue's first message from `begin` on.

    The result is at most `before`. It is `log_min` if the queue on disk is damaged or shorter than the checkpoint says.
    """
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
