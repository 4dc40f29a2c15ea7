"""What happens to a store directory before it is used: one walk over the newest part of the log.

1. Decide where to begin. All before `State.dispatched_to` is on disk in log, queues and index, so the walk begins some
   way before that (`walk_start`), with the log file in which it lies at the earliest; with an earlier one if a queue or
   a part of the index is gone, and with the first one if there is no state (a directory of RocketMQ's, or ours with the
   private folder lost).
2. Walk the records in batches, check their CRC, and write their queue entries and keys where they belong. What is
   there already is written over with the same; what is missing comes back.
3. The first thing that is no sound record is the *end* if nothing sound follows, or if an append was cut short there;
   the log, the queues and the index are cut to it. If sound records follow (or if it is the damaged end of what had
   been flushed), it is *corruption*: it is reported with file and offset, a copy of the damaged bytes is kept under
   raymq/damaged/, and the walk goes on behind it. The queues keep their entries of it: reading it is an error of
   exactly that offset.

A directory opened read-only is walked in the same way; what is missing in queues and index is added in memory, and
nothing is written.
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
from raymq.storage.log.checkpoint import Checkpoint, State
from raymq.storage.log.commit_log import CommitLog, is_marked
from raymq.storage.log.damaged import keep_copy
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.offset_plausibility import NewestMessages
from raymq.storage.log.walk_start import WalkStart
from raymq.storage.records import record as layout
from raymq.storage.records.batch import BadRecord, Batch, parse, strided
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.index_inputs import Derived, derive

_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 8192
#: What the magics of both versions begin with.
_MAGIC_PREFIX: Final = layout.MAGIC_V1.to_bytes(4, "big", signed=True)[:3]
_MAGICS: Final = (layout.MAGIC_V1, layout.MAGIC_V2)
#: Behind every place of a log.
NOWHERE: Final = 1 << 62


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
    deleted: Mapping[str, int],
    clean: bool,
    same_boot: bool,
    aside: Path | None,
    expired: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    cut: int | None = None,
) -> RecoveryReport:
    """Bring log, queues and index to one state; they are complete and consistent when it returns.

    Args:
        state: None if there is none.
        deleted: where the log ended when a topic was deleted.
        same_boot: the machine has not been started anew since the store was last open, and its disk did not fail.
        aside: folder for copies of damaged bytes; None = read-only, change nothing.
        expired: how far queues are, at least, of which the log has nothing.
        cut: what lies behind this place never was; it is gone from the disk when this returns. None = all was.
    """
    report = RecoveryReport(clean)
    trusted = clean or same_boot
    if aside is not None:
        _trust_index(dispatcher.index, state, checkpoint, log, clean=clean, trusted=trusted)
        # Behind what was deleted before the log begins is another topic, of which fillers may be all that is left.
        dispatcher.drop_deleted({topic: place for topic, place in deleted.items() if place >= log.min_offset})
    limit = _limit(log, dispatcher, cut, writable=aside is not None)
    begin, known_end = _begin(log, dispatcher, state, limit)
    report.walked_from = begin
    log.walk_start = WalkStart(begin)
    # The newest record's keys may be there in part: it is indexed again, but for the entries that it has.
    index_after, indexed = dispatcher.index.end_physical - 1, dispatcher.index.newest()
    placement = NewestMessages()
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
            log.walk_start.note(position)
            _dispatch(dispatcher, batch, queued, index_after, indexed)
            position = end = position + len(batch.records)
            last_timestamp_ms = int(batch.store_timestamps_ms[-1])
        elif behind:
            if behind > limit:
                break
            position = end = behind
        else:
            follower = _follower(log, position, known_end, state, checkpoint, trusted=trusted)
            if follower == NOWHERE or follower > limit:
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
            queue.hide_behind(end)
    for queue in dispatcher.queues.values():
        queue.trim(log.min_offset)
        queue.distrust()
    last_timestamp_ms = last_timestamp_ms or checkpoint.physical_ms
    # What follows has another store time: by that it is told from an append whose end a loss of power took.
    log.set_end(end, last_timestamp_ms if trusted else last_timestamp_ms + 1)
    dispatcher.dispatched_to = end
    return report


def _limit(log: CommitLog, dispatcher: Dispatcher, cut: int | None, *, writable: bool) -> int:
    """Up to where the log is walked; no queue has an entry from behind a cut then.

    One that was deleted and made anew there begins with such entries, and the walk puts older ones behind them.
    """
    if cut is None:
        return NOWHERE
    limit = max(cut, log.min_offset)
    for queue in dispatcher.queues.values() if writable else ():
        queue.truncate(limit, certainly=True, durably=True)
    return limit


def _trust_index(
    index: KeyIndex, state: State | None, checkpoint: Checkpoint, log: CommitLog, *, clean: bool, trusted: bool
) -> None:
    """Leave of the index only what is surely right."""
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


def _begin(log: CommitLog, dispatcher: Dispatcher, state: State | None, limit: int) -> tuple[int, int]:
    """Where to begin to walk, and how far the log up to `limit` is known to have reached."""
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
    if file < state.walk_from <= begin and is_marked(log.files.file_at(file), state.walk_from - file):
        return state.walk_from, known_end
    return file, known_end


def next_batch(log: CommitLog, position: int, limit: int = NOWHERE) -> tuple[Batch | None, int, str]:
    """The sound records at `position` that end at or before `limit`; or where to go on behind a BLANK; or why there is
    no record.
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
    """The sizes of the records that claim to stand one behind the other from `begin` on, and why there are no more."""
    sizes: list[int] = []
    reason = "no record begins here"
    view, read = file.view, layout.BLANK.unpack_from  # this loop is most of what a start takes
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
        told = strided(view, ">i8")[places + layout.OFFSET_PHYSICAL_OFFSET]
        elsewhere = np.flatnonzero(told != file.start + places)
        if len(elsewhere):  # a record names its own place: one that does not was left there by something else
            del sizes[int(elsewhere[0]) :]
            reason = "no record begins here"
    return sizes, reason


def _sound_part(
    batch: Batch, deleted: Mapping[str, int], placement: NewestMessages, known_bytes: int | None, file: MappedFile
) -> tuple[Batch | None, npt.NDArray[np.bool_], str]:
    """The records before the first that cannot be as it was written, though its CRC is right; why there is none.

    Args:
        known_bytes: how much of the batch was surely on disk; of the rest pages may be missing. None = all.
        file: what the batch is in.

    Returns:
        The records, which of them have an entry in a queue (no half messages, none of a topic deleted behind them).
    """
    count, reason = len(batch), ""
    if known_bytes is not None and known_bytes < len(batch.records):
        begin = int(batch.physical_offsets[0]) - file.start
        spans = zip(batch.properties_at.tolist(), batch.ends.tolist(), strict=True)
        count = next((i for i, (at, end) in enumerate(spans) if _has_hole(file, begin + at, begin + end)), count)
        reason = "a hole in the properties"
    queued = in_queues(batch, deleted)
    placed = placement.sound_records(batch, queued & (np.arange(len(batch)) < count))
    if placed < count:
        count, reason = placed, "a queue offset that cannot be"
    if count == len(batch):
        return batch, queued, ""
    if count == 0:
        return None, queued, reason
    return parse(batch.records[: int(batch.starts[count])], batch.sizes[:count].astype(np.int32)), queued[:count], ""


def in_queues(batch: Batch, deleted: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Which records have an entry in a queue: no half messages, and none of a topic that was deleted behind them."""
    kind = batch.sys_flags & layout.SYS_FLAG_TRANSACTION_MASK
    queued: npt.NDArray[np.bool_] = (kind == 0) | (kind == layout.SYS_FLAG_TRANSACTION_COMMIT)
    for group in batch.groups:
        if group.topic in deleted:
            members = np.arange(len(batch)) if group.members is None else group.members
            queued[members] &= batch.physical_offsets[members] >= deleted[group.topic]
    return queued


def _has_hole(file: MappedFile, begin: int, end: int) -> bool:
    """Whether of the properties begin..end of a file something did not get to the disk.

    Then a sector is all zeros; properties of that length with zeros in them are not taken in.
    """
    if b"\0" not in bytes(file.view[begin:end]):
        return False
    sectors = range(begin - begin % layout.SECTOR_BYTES, end, layout.SECTOR_BYTES)
    return not all(any(file.view[at : at + layout.SECTOR_BYTES]) for at in sectors)


def _follower(
    log: CommitLog, position: int, known_end: int, state: State | None, checkpoint: Checkpoint, *, trusted: bool
) -> int:
    """Where to go on behind the damage at `position`; NOWHERE if the log ends there."""
    if position >= known_end and _is_zero(log, position):
        return NOWHERE
    follower = next_sound(log, position)
    if position < known_end:
        return known_end if follower == NOWHERE and known_end <= log.files.last_data(position) else follower
    if follower == NOWHERE:
        return NOWHERE
    flushed = trusted or (state is None and log.store_timestamp(follower) <= checkpoint.physical_ms)
    return follower if flushed else NOWHERE


def _dispatch(
    dispatcher: Dispatcher,
    batch: Batch,
    queued: npt.NDArray[np.bool_],
    index_after: int,
    indexed: Counter[tuple[int, int]],
) -> None:
    dispatcher.dispatch(
        batch,
        _not_indexed(derive(batch), batch.physical_offsets, indexed),
        batch.queue_offsets,
        batch.physical_offsets,
        batch.store_timestamps_ms,
        queued=None if queued.all() else queued,
        index_after=index_after,
    )
    if dispatcher.entry_writer is not None:
        dispatcher.entry_writer.check_room()


def _not_indexed(derived: Derived, physical_offsets: Int64s, indexed: Counter[tuple[int, int]]) -> Derived:
    """What is derived without the keys that have an entry, each as often as it has one."""
    places = physical_offsets[derived.key_owners]
    kept = np.ones(len(places), np.bool_)
    for number in np.flatnonzero(np.isin(places, [place for place, _ in indexed])).tolist():
        entry = int(places[number]), int(derived.key_hashes[number])
        if indexed[entry] > 0:
            indexed[entry] -= 1
            kept[number] = False
    return derived if kept.all() else Derived(derived.tags_codes, derived.key_hashes[kept], derived.key_owners[kept])


def next_sound(log: CommitLog, position: int) -> int:
    """The first place behind `position` where a sound record stands; NOWHERE if there is none."""
    for start in log.files.starts:
        if start + log.files.file_bytes <= position:
            continue
        file = log.files.file_at(start)
        at = max(0, position + 1 - start)
        found = next_sound_in(file, at)
        if found >= 0:
            return start + found
    return NOWHERE


def next_sound_in(file: MappedFile, at: int, before: int | None = None) -> int:
    """Where the first sound record at or behind byte `at`, and before that one, begins; -1 if there is none."""
    search = at
    end = file.size if before is None else min(file.size, before + layout.OFFSET_MAGIC + len(_MAGIC_PREFIX) - 1)
    while (hit := file.find(_MAGIC_PREFIX, search, end)) >= 0:
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


def _keep(log: CommitLog, position: int, follower: int, reason: str, aside: Path | None) -> Corruption:
    file = log.files.file_at(position)
    at = position - file.start
    if aside is not None:
        keep_copy(aside, position, file.view[at : min(file.size, at + follower - position)])
    return Corruption(str(file.path), at, reason)


def _cut(log: CommitLog, dispatcher: Dispatcher, end: int, *, certainly: bool, durably: bool) -> None:
    """Drop what lies behind `end` in log, queues and index.

    What was dropped of the log is gone from the disk: else a loss of power could bring it back behind what comes next.

    Args:
        durably: so is what was dropped of queues, and not only with the next `sync`.
    """
    failpoint("recovery.before_cut")
    if log.files.starts and (log.files.last_data(end) > end or end <= log.files.starts[-1]):
        log.files.zero_from(end, durably=True)
    failpoint("recovery.between_cuts")
    for queue in dispatcher.queues.values():
        queue.truncate(end, certainly=certainly, durably=durably)
    dispatcher.index.cap(end)


def _restore_ends(dispatcher: Dispatcher, ends: Mapping[str, Mapping[int, int]], known_end: int = NOWHERE) -> None:
    """Let no queue end before it did: offsets of messages that have expired are not given away again.

    A queue with a message behind `known_end`, where the log ended when the ends were saved, and that ends earlier all
    the same, is another one: its topic was deleted and created again.
    """
    for topic, queues in ends.items():
        for queue_id, max_offset in queues.items():
            queue = dispatcher.reserve((topic, queue_id))
            if queue.end_physical() <= known_end:
                queue.extend(max_offset)
