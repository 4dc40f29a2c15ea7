"""What happens to a store directory before it is used: one walk over the newest part of the log.

1. Decide where to begin. All before `State.dispatched_to` is on disk in log, queues and index, so the walk begins with
   the log file in which that lies; with an earlier one if a queue or a part of the index is gone, and with the first
   one if there is no state (a directory of RocketMQ's, or ours with the private folder lost).
2. Walk the records in batches, check their CRC, and write their queue entries and keys where they belong. What is
   there already is written over with the same; what is missing comes back.
3. The first thing that is no sound record is the *end* if nothing sound follows, or if an append was cut short there;
   the log, the queues and the index are cut to it. If sound records follow (or if it is the damaged end of what had
   been flushed), it is *corruption*: it is reported with file and offset, a copy of the damaged bytes is kept under
   raymq/damaged/, and the walk goes on behind it. The queues keep their entries of it: reading it is an error of
   exactly that offset.

A directory opened read-only is walked in the same way, and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from raymq.storage import fileutil
from raymq.storage import record as layout
from raymq.storage.checkpoint import Checkpoint, State
from raymq.storage.commit_log import CommitLog, is_marked
from raymq.storage.dispatch import Dispatcher
from raymq.storage.errors import StoreCorrupt
from raymq.storage.mapped_file import MappedFile
from raymq.storage.record_batch import BadRecord, Batch, parse

_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 8192
#: What the magics of both versions begin with.
_MAGIC_PREFIX: Final = layout.MAGIC_V1.to_bytes(4, "big", signed=True)[:3]
_NOWHERE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Corruption:
    """Bytes of a file that are not what was written; `offset` is within the file."""

    file: str
    offset: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What opening a store found and did.

    Attributes:
        clean: whether the store had been closed properly.
        truncated_bytes: how much of the log's tail was dropped (a torn append, or bytes that are gone).
        corruption: damage in front of sound records; these stay readable.
        walked_from: physical offset from which records were checked.
        records: how many sound records were walked.
    """

    clean: bool
    truncated_bytes: int = 0
    corruption: list[Corruption] = field(default_factory=list)
    walked_from: int = 0
    records: int = 0


def recover(
    log: CommitLog,
    dispatcher: Dispatcher,
    state: State | None,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    same_boot: bool,
    aside: Path | None,
) -> RecoveryReport:
    """Bring log, queues and index to one state; they are complete and consistent when it returns.

    Args:
        state: None if there is none.
        same_boot: the machine has not been started anew since the store was last open.
        aside: folder for copies of damaged bytes; None = read-only, change nothing.
    """
    report = RecoveryReport(clean)
    trusted = clean or same_boot
    if aside is not None:
        if not trusted:
            dispatcher.index.drop_after(checkpoint.index_ms)
        elif not clean:
            dispatcher.index.repair()
    deleted = state.deleted_topics if state else {}
    if aside is not None:
        dispatcher.drop_deleted(deleted)
    begin, known_end = _begin(log, dispatcher, state)
    report.walked_from = begin
    index_after = dispatcher.index.end_physical
    end, last_timestamp_ms = begin, 0
    position = begin
    while position < log.files.end:
        found = _next_batch(log, position)
        if isinstance(found, Batch):
            report.records += len(found)
            if aside is not None:
                _dispatch(dispatcher, found, index_after, deleted)
            position += len(found.records)
            end, last_timestamp_ms = position, int(found.store_timestamps_ms[-1])
            continue
        if isinstance(found, int):
            position = end = found
            continue
        follower = _next_sound(log, position)
        if follower == _NOWHERE and position < known_end <= _used_end(log, position):
            follower = known_end
        if follower == _NOWHERE or (
            position >= known_end
            and (_is_zero(log, position) or not (trusted or _was_flushed(log, follower, checkpoint)))
        ):
            break
        report.corruption.append(_keep(log, position, follower, found, aside))
        position = end = follower
    report.truncated_bytes = max(_used_end(log, end), known_end) - end
    if aside is not None:
        _cut(log, dispatcher, end)
    else:
        for queue in dispatcher.queues.values():
            queue.hide_behind(end)
    for queue in dispatcher.queues.values():
        queue.trim(log.min_offset)
    log.set_end(end, last_timestamp_ms or checkpoint.physical_ms)
    dispatcher.dispatched_to = end
    return report


def _begin(log: CommitLog, dispatcher: Dispatcher, state: State | None) -> tuple[int, int]:
    """Where to begin to walk, and how far the log is known to have reached."""
    first = log.min_offset
    if state is None or not first <= state.dispatched_to <= log.files.end:
        return first, 0 if state is None else max(0, state.dispatched_to)
    begin = state.dispatched_to
    if dispatcher.index.end_physical < state.indexed_to:
        begin = min(begin, max(first, dispatcher.index.end_physical))
    for topic, queues in state.queues.items():
        for queue_id, max_offset in queues.items():
            queue = dispatcher.queues.get((topic, queue_id))
            if queue is None or queue.max_offset < max_offset:
                begin = first
    last_file = log.files.end - log.files.file_bytes
    begin = max(first, min(begin, last_file))
    return begin - begin % log.files.file_bytes, state.dispatched_to


def _next_batch(log: CommitLog, position: int) -> Batch | int | str:
    """The sound records at `position`; or where to go on behind a BLANK; or why there is no record."""
    file = log.files.file_at(position)
    behind = log.skip_blank(position)
    if behind != position:
        return behind
    begin = at = position - file.start
    sizes: list[int] = []
    reason = "no record begins here"
    while len(sizes) < _BATCH_RECORDS and at - begin < _BATCH_BYTES and is_marked(file, at):
        size = layout.BLANK.unpack_from(file.view, at)[0]
        if not layout.MIN_RECORD_BYTES <= size <= file.size - at:
            reason = f"impossible size {size}"
            break
        sizes.append(size)
        at += size
    while sizes:
        try:
            return parse(file.view[begin : begin + sum(sizes)], np.array(sizes, np.int32))
        except BadRecord as bad:
            reason = bad.reason if bad.index == 0 else reason
            del sizes[bad.index :]
    return reason


def _dispatch(dispatcher: Dispatcher, batch: Batch, index_after: int, deleted: dict[str, int]) -> None:
    physical_offsets = batch.physical_offsets
    kind = batch.sys_flags & layout.SYS_FLAG_TRANSACTION_MASK
    queued = (kind == 0) | (kind == layout.SYS_FLAG_TRANSACTION_COMMIT)
    for group in batch.groups:
        if group.topic in deleted:
            members = np.arange(len(batch)) if group.members is None else group.members
            queued[members] &= physical_offsets[members] >= deleted[group.topic]
    dispatcher.dispatch(
        batch,
        batch.queue_offsets,
        physical_offsets,
        batch.store_timestamps_ms,
        queued=None if queued.all() else queued,
        index_after=index_after,
    )


def _next_sound(log: CommitLog, position: int) -> int:
    """The first place behind `position` where a sound record stands; _NOWHERE if there is none."""
    for start in log.files.starts:
        if start + log.files.file_bytes <= position:
            continue
        file = log.files.file_at(start)
        at = max(0, position + 1 - start)
        found = next_sound_in(file, at)
        if found >= 0:
            return start + found
    return _NOWHERE


def next_sound_in(file: MappedFile, at: int) -> int:
    """Where the first sound record at or behind byte `at` of the file begins; -1 if there is none."""
    search = at
    while (hit := file.find(_MAGIC_PREFIX, search, file.size)) >= 0:
        begin = hit - layout.OFFSET_MAGIC
        if begin >= at and _is_sound(file, begin):
            return begin
        search = hit + 1
    return -1


def _is_sound(file: MappedFile, at: int) -> bool:
    if not is_marked(file, at):
        return False
    try:
        layout.measure(file.view, at, file.size)
    except StoreCorrupt:
        return False
    return True


def _is_zero(log: CommitLog, position: int) -> bool:
    """Whether the size field there is 0: nothing was appended, or the append did not come to its end."""
    file = log.files.file_at(position)
    at = position - file.start
    return not any(file.view[at : at + layout.OFFSET_MAGIC])


def _was_flushed(log: CommitLog, position: int, checkpoint: Checkpoint) -> bool:
    """Whether the record at `position` had been flushed, and with it all before it."""
    return log.store_timestamp(position) <= checkpoint.physical_ms


def _keep(log: CommitLog, position: int, follower: int, reason: str, aside: Path | None) -> Corruption:
    file = log.files.file_at(position)
    at = position - file.start
    if aside is not None:
        aside.mkdir(parents=True, exist_ok=True)
        fileutil.replace(aside / f"{position:020d}", bytes(file.view[at : min(file.size, at + follower - position)]))
    return Corruption(str(file.path), at, reason)


def _used_end(log: CommitLog, end: int) -> int:
    """One past the last byte from `end` on that is not zero; `end` if there is none."""
    used = end
    for start in log.files.starts:
        if start + log.files.file_bytes > end:
            begin = max(0, end - start)
            last = log.files.file_at(start).last_data(begin, log.files.file_bytes)
            used = max(used, start + last) if last > begin else used
    return used


def _cut(log: CommitLog, dispatcher: Dispatcher, end: int) -> None:
    """Drop what lies behind `end` in log, queues and index."""
    if log.files.starts and (_used_end(log, end) > end or end <= log.files.starts[-1]):
        log.files.zero_from(end)
    for queue in dispatcher.queues.values():
        queue.truncate(end)
    dispatcher.index.cap(end)
