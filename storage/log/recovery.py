"""Recover a store directory before use, by walking over the log's newest part.

1. Choose where to begin. Everything before `CheckpointState.dispatched_to` is on disk in log, queues and index. The
   walk begins some way before that (`recovery_start`), at the earliest with the log file that contains it; it begins
   with an earlier file if a queue or a part of the index is missing, and with the first file if there is no state (a
   directory of RocketMQ's, or one of RayMQ's that lost its private folder).
2. Walk the records in batches, check their CRC, and write their queue entries and keys. Existing entries are
   overwritten with the same content; missing ones are restored.
3. The first bytes that are no sound record are the *end* of the log if no sound record follows, or if an append was
   interrupted there; the log, the queues and the index are cut to that end. If sound records follow (or if the bytes
   are the damaged end of what had been flushed), they are *corruption*: file and offset are reported, a copy of the
   damaged bytes is kept under raymq/damaged/, and the walk continues behind them. The queues keep their entries for
   them: reading one raises an error for exactly that offset.

A directory that is opened read-only is walked in the same way: missing entries of queues and index are added in memory,
and nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files.mapped_file import MappedFile
from raymq.storage.log.checkpoint import Checkpoint, CheckpointState
from raymq.storage.log.commit_log import CommitLog, has_record_header
from raymq.storage.log.damaged_copies import save_damaged_copy
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.queue_offset_validator import QueueOffsetValidator
from raymq.storage.log.recovery_start import RecoveryStart
from raymq.storage.records import record as layout
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.index_inputs import IndexInputs, derive_index_inputs
from raymq.storage.records.record_batch import BadRecord, Batch, parse, strided

_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 8192
#: The common prefix of both versions' magics.
_MAGIC_PREFIX: Final = layout.MAGIC_V1.to_bytes(4, "big", signed=True)[:3]
_MAGICS: Final = (layout.MAGIC_V1, layout.MAGIC_V2)
#: Above every physical offset of a log.
NO_POSITION: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Corruption:
    """Bytes of a file that differ from what was written; `offset` is within the file."""

    file: str
    offset: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """The result of opening a store.

    Attributes:
        clean: whether the store had been closed properly.
        truncated_bytes: how much of the log's tail was dropped (an interrupted append, or bytes that are missing).
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
    state: CheckpointState | None,
    checkpoint: Checkpoint,
    *,
    deleted: Mapping[str, int],
    clean: bool,
    same_boot: bool,
    aside: Path | None,
    expired: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    cut: int | None = None,
) -> RecoveryReport:
    """Make log, queues and index complete and consistent with each other.

    Args:
        state: None if there is none.
        deleted: the log's end at the deletion of each deleted topic.
        same_boot: the machine has not been restarted since the store was last open, and its disk did not fail.
        aside: folder for copies of damaged bytes; None = read-only, change nothing.
        expired: the least end offsets of queues that have no messages left in the log.
        cut: drop everything behind this physical offset; it is removed from the disk when this returns. None = keep
            all.
    """
    report = RecoveryReport(clean)
    trusted = clean or same_boot
    if aside is not None:
        _trust_index(dispatcher.index, state, checkpoint, log, clean=clean, trusted=trusted)
        # Queues of a topic deleted before the log's minimum belong to a recreated topic, and may hold only fillers.
        dispatcher.drop_deleted({topic: place for topic, place in deleted.items() if place >= log.min_offset})
    limit = _limit(log, dispatcher, cut, writable=aside is not None)
    begin, known_end = _begin(log, dispatcher, state, limit)
    report.walked_from = begin
    log.recovery_start = RecoveryStart(begin)
    # The newest record may be indexed in part, so its missing entries are added.
    index_after, indexed = dispatcher.index.end_physical - 1, dispatcher.index.newest()
    placement = QueueOffsetValidator()
    position = end = begin
    last_timestamp_ms = 0
    while position < min(limit, log.files.end):
        batch, behind, reason = next_batch(log, position, limit)
        queued = np.empty(0, np.bool_)
        if batch is not None:
            known_bytes = None if trusted or state is None else known_end - position
            batch, queued, reason = _sound_part(batch, deleted, placement, known_bytes, log.files.file_at(position))
        if batch is not None:
            report.records += len(batch)
            log.recovery_start.note(position)
            _dispatch(dispatcher, batch, queued, index_after, indexed)
            position = end = position + len(batch.records)
            last_timestamp_ms = int(batch.store_timestamps_ms[-1])
        elif behind:
            if behind > limit:
                break
            position = end = behind
        else:
            follower = _follower(log, position, known_end, state, checkpoint, trusted=trusted)
            if follower == NO_POSITION or follower > limit:
                break
            report.corruption.append(_keep(log, position, follower, reason, aside))
            position = end = follower
    report.truncated_bytes = max(log.files.last_data(end), known_end) - end
    if aside is not None:
        _cut(log, dispatcher, end, certainly=not trusted or cut is not None, durably=cut is not None)
        if state is not None and end >= known_end and cut is None:
            _restore_ends(dispatcher, state.queues, known_end)
        _restore_ends(dispatcher, expired)
        if not trusted and end > known_end:
            log.files.rewrite(max(begin, known_end), end)
    else:
        for queue in dispatcher.queues.values():
            queue.truncate_in_memory(end)
    for queue in dispatcher.queues.values():
        queue.trim(log.min_offset)
        queue.reset_checked()
    last_timestamp_ms = last_timestamp_ms or checkpoint.physical_ms
    # A later store time distinguishes the next records from an append that a loss of power cut off.
    log.set_end(end, last_timestamp_ms if trusted else last_timestamp_ms + 1)
    dispatcher.dispatched_to = end
    return report


def _limit(log: CommitLog, dispatcher: Dispatcher, cut: int | None, *, writable: bool) -> int:
    """Return the end of the walk, after truncating all queues to a cut.

    A queue that was deleted and recreated behind the cut begins with entries from there, and the walk would put older
    entries behind those.
    """
    if cut is None:
        return NO_POSITION
    limit = max(cut, log.min_offset)
    for queue in dispatcher.queues.values() if writable else ():
        queue.truncate(limit, certainly=True, durably=True)
    return limit


def _trust_index(
    index: KeyIndex,
    state: CheckpointState | None,
    checkpoint: Checkpoint,
    log: CommitLog,
    *,
    clean: bool,
    trusted: bool,
) -> None:
    """Drop the parts of the index that may be wrong."""
    extent = None if state is None else state.index
    if extent is not None:
        index.check_against(extent, log.min_offset, clean=clean)
    if trusted:
        if not clean:
            index.repair(extent)
    elif extent is not None:
        index.restore(extent)
    else:
        index.drop_after(checkpoint.index_ms)


def _begin(log: CommitLog, dispatcher: Dispatcher, state: CheckpointState | None, limit: int) -> tuple[int, int]:
    """Return where the walk begins, and the known end of the log up to `limit`."""
    first = log.min_offset
    if state is None or not first <= state.dispatched_to <= log.files.end:
        return first, 0 if state is None else min(max(0, state.dispatched_to), limit)
    begin = known_end = min(state.dispatched_to, limit)
    if dispatcher.index.end_physical < state.indexed_to:
        begin = min(begin, max(first, dispatcher.index.end_physical))
    for topic, queues in state.queues.items():
        for queue_id, max_offset in queues.items():
            queue = dispatcher.queues.get((topic, queue_id))
            if queue is None or not queue.reaches(max_offset, log.files.end):
                begin = first
    last_file = log.files.end - log.files.file_bytes
    file = max(first, min(begin - begin % log.files.file_bytes, last_file))
    if file < state.walk_from <= begin and has_record_header(log.files.file_at(file), state.walk_from - file):
        return state.walk_from, known_end
    return file, known_end


def next_batch(log: CommitLog, position: int, limit: int = NO_POSITION) -> tuple[Batch | None, int, str]:
    """Parse the sound records at `position` that end at or before `limit`.

    Returns:
        The batch, or None; the position behind a BLANK, or 0 if there is none; and the reason if there is neither.
    """
    file = log.files.file_at(position)
    behind = log.skip_blank(position)
    if behind != position:
        return None, behind, ""
    begin = position - file.start
    sizes, reason = _claimed_sizes(file, begin)
    while sizes and position + sum(sizes) > limit:
        del sizes[int(np.searchsorted(np.cumsum(sizes), limit - position, "right")) :]
    while sizes:
        try:
            return parse(file.view[begin : begin + sum(sizes)], np.array(sizes, np.int32)), 0, ""
        except BadRecord as bad:
            reason = bad.reason if bad.index == 0 else reason
            del sizes[bad.index :]
    return None, 0, reason


def _claimed_sizes(file: MappedFile, begin: int) -> tuple[list[int], str]:
    """Return the sizes of the consecutive record headers from `begin` on.

    Also return the reason why no further header follows.
    """
    sizes: list[int] = []
    reason = "no record begins here"
    view, read = file.view, layout.BLANK.unpack_from  # local names, because this loop takes most of the time of a start
    at, last = begin, min(begin + _BATCH_BYTES, file.size - layout.MIN_RECORD_BYTES + 1)
    while at < last and len(sizes) < _BATCH_RECORDS:
        size, magic = read(view, at)
        if magic not in _MAGICS:
            break
        if not layout.MIN_RECORD_BYTES <= size <= file.size - at:
            reason = f"impossible size {size}"
            break
        sizes.append(size)
        at += size
    if sizes:
        places = begin + np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        stored = strided(view, ">i8")[places + layout.OFFSET_PHYSICAL_OFFSET]
        elsewhere = np.flatnonzero(stored != file.start + places)
        if len(elsewhere):  # a record contains its own physical offset, so other bytes are no record of this log
            del sizes[int(elsewhere[0]) :]
            reason = "no record begins here"
    return sizes, reason


def _sound_part(
    batch: Batch, deleted: Mapping[str, int], placement: QueueOffsetValidator, known_bytes: int | None, file: MappedFile
) -> tuple[Batch | None, npt.NDArray[np.bool_], str]:
    """Return the records of a batch before the first implausible one.

    A record with the right CRC is implausible if its properties have a hole, or if its queue offset is impossible.

    Args:
        known_bytes: how much of the batch was surely on disk; pages of the rest may be missing. None = all.
        file: the file that contains the batch.

    Returns:
        The records, or None; which of them have an entry in a queue (no half messages, none of a topic that was deleted
            later in the log); and the reason if there are no records.
    """
    count, reason = len(batch), ""
    if known_bytes is not None and known_bytes < len(batch.records):
        begin = int(batch.physical_offsets[0]) - file.start
        spans = zip(batch.properties_at.tolist(), batch.ends.tolist(), strict=True)
        count = next((i for i, (at, end) in enumerate(spans) if _has_hole(file, begin + at, begin + end)), count)
        reason = "a hole in the properties"
    queued = queued_mask(batch, deleted)
    placed = placement.count_plausible(batch, queued & (np.arange(len(batch)) < count))
    if placed < count:
        count, reason = placed, "an impossible queue offset"
    if count == len(batch):
        return batch, queued, ""
    if count == 0:
        return None, queued, reason
    return parse(batch.records[: int(batch.starts[count])], batch.sizes[:count].astype(np.int32)), queued[:count], ""


def queued_mask(batch: Batch, deleted: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Return which records have an entry in a queue.

    Half messages have none, nor have records of a topic that was deleted later in the log.
    """
    kind = batch.sys_flags & layout.SYS_FLAG_TRANSACTION_MASK
    queued: npt.NDArray[np.bool_] = (kind == 0) | (kind == layout.SYS_FLAG_TRANSACTION_COMMIT)
    for group in batch.groups:
        if group.topic in deleted:
            members = np.arange(len(batch)) if group.members is None else group.members
            queued[members] &= batch.physical_offsets[members] >= deleted[group.topic]
    return queued


def _has_hole(file: MappedFile, begin: int, end: int) -> bool:
    """Return True if a part of a file's properties begin..end did not reach the disk.

    A sector is all zeros then. Properties of at least that length that contain zeros are refused when they are
    appended.
    """
    if b"\0" not in bytes(file.view[begin:end]):
        return False
    sectors = range(begin - begin % layout.SECTOR_BYTES, end, layout.SECTOR_BYTES)
    return not all(any(file.view[at : at + layout.SECTOR_BYTES]) for at in sectors)


def _follower(
    log: CommitLog,
    position: int,
    known_end: int,
    state: CheckpointState | None,
    checkpoint: Checkpoint,
    *,
    trusted: bool,
) -> int:
    """Return where the walk continues behind the damage at `position`.

    Return NO_POSITION if the log ends there.
    """
    if position >= known_end and _is_zero(log, position):
        return NO_POSITION
    follower = find_next_record(log, position)
    if position < known_end:
        return known_end if follower == NO_POSITION and known_end <= log.files.last_data(position) else follower
    if follower == NO_POSITION:
        return NO_POSITION
    flushed = trusted or (state is None and log.store_timestamp(follower) <= checkpoint.physical_ms)
    return follower if flushed else NO_POSITION


def _dispatch(
    dispatcher: Dispatcher,
    batch: Batch,
    queued: npt.NDArray[np.bool_],
    index_after: int,
    indexed: Counter[tuple[int, int]],
) -> None:
    dispatcher.dispatch(
        batch,
        _not_indexed(derive_index_inputs(batch), batch.physical_offsets, indexed),
        batch.queue_offsets,
        batch.physical_offsets,
        batch.store_timestamps_ms,
        queued=None if queued.all() else queued,
        index_after=index_after,
    )
    if dispatcher.entry_writer is not None:
        dispatcher.entry_writer.check_room()


def _not_indexed(derived: IndexInputs, physical_offsets: Int64s, indexed: Counter[tuple[int, int]]) -> IndexInputs:
    """Return the derived inputs without the keys that are indexed already.

    A key is left out as often as it has an entry.
    """
    places = physical_offsets[derived.key_owners]
    retained = np.ones(len(places), np.bool_)
    for number in np.flatnonzero(np.isin(places, [place for place, _ in indexed])).tolist():
        entry = int(places[number]), int(derived.key_hashes[number])
        if indexed[entry] > 0:
            indexed[entry] -= 1
            retained[number] = False
    return (
        derived
        if retained.all()
        else IndexInputs(derived.tags_codes, derived.key_hashes[retained], derived.key_owners[retained])
    )


def find_next_record(log: CommitLog, position: int) -> int:
    """Return where the first sound record behind `position` begins; NO_POSITION if none."""
    for start in log.files.starts:
        if start + log.files.file_bytes <= position:
            continue
        file = log.files.file_at(start)
        at = max(0, position + 1 - start)
        found = find_next_record_in(file, at)
        if found >= 0:
            return start + found
    return NO_POSITION


def find_next_record_in(file: MappedFile, at: int, before: int | None = None) -> int:
    """Return the first byte at or behind `at` where a sound record begins.

    The record must begin before `before`. Return -1 if there is none.
    """
    search = at
    end = file.size if before is None else min(file.size, before + layout.OFFSET_MAGIC + len(_MAGIC_PREFIX) - 1)
    while (hit := file.find(_MAGIC_PREFIX, search, end)) >= 0:
        begin = hit - layout.OFFSET_MAGIC
        if begin >= at and _is_sound(file, begin):
            return begin
        search = hit + 1
    return -1


def _is_sound(file: MappedFile, at: int) -> bool:
    if not has_record_header(file, at):
        return False
    try:
        layout.measure(file.view, at, file.size)
    except StoreCorrupt:
        return False
    return True


def _is_zero(log: CommitLog, position: int) -> bool:
    """Return True if the size field at `position` is 0.

    Nothing was appended there then, or the append was interrupted.
    """
    file = log.files.file_at(position)
    at = position - file.start
    return not any(file.view[at : at + layout.OFFSET_MAGIC])


def _keep(log: CommitLog, position: int, follower: int, reason: str, aside: Path | None) -> Corruption:
    file = log.files.file_at(position)
    at = position - file.start
    if aside is not None:
        save_damaged_copy(aside, position, file.view[at : min(file.size, at + follower - position)])
    return Corruption(str(file.path), at, reason)


def _cut(log: CommitLog, dispatcher: Dispatcher, end: int, *, certainly: bool, durably: bool) -> None:
    """Drop everything behind `end` in log, queues and index.

    The dropped part of the log is removed from the disk: otherwise a loss of power could restore it behind the next
    records.

    Args:
        durably: the dropped entries of queues are removed from the disk too, and not only with the next `sync`.
    """
    failpoint("recovery.before_cut")
    if log.files.starts and (log.files.last_data(end) > end or end <= log.files.starts[-1]):
        log.files.zero_from(end, durably=True)
    failpoint("recovery.between_cuts")
    for queue in dispatcher.queues.values():
        queue.truncate(end, certainly=certainly, durably=durably)
    dispatcher.index.truncate(end)


def _restore_ends(dispatcher: Dispatcher, ends: Mapping[str, Mapping[int, int]], known_end: int = NO_POSITION) -> None:
    """Extend queues to their saved ends, so that offsets of expired messages are not reused.

    `known_end` is the log's end when the ends were saved. A queue that has a message behind it, but ends before its
    saved end, was deleted and recreated; it is not extended.
    """
    for topic, queues in ends.items():
        for queue_id, max_offset in queues.items():
            queue = dispatcher.reserve((topic, queue_id))
            if queue.end_physical() <= known_end:
                queue.extend(max_offset)
