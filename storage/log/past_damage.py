"""A walk along the log that does not end at damage: it says where that is, and goes on behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raymq.storage.errors import MessageNotFound, StoreCorrupt
from raymq.storage.log.commit_log import CommitLog, is_marked
from raymq.storage.log.recovery import next_sound_in
from raymq.storage.records import record as layout
from raymq.storage.records.record import Record

#: So much is searched at once for the next record; the walk yields what it has not found, too.
_SEARCHED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of the log that has no sound record; where the next one begins before its end, more damage follows.

    Attributes:
        begin, end: physical offsets.
        reason: what is wrong at its beginning.
    """

    begin: int
    end: int
    reason: str


def walk_past_damage(log: CommitLog, physical_offset: int) -> Iterator[Record | Damage]:
    """The sound records in log order from there on, and the damage between them."""
    position = max(physical_offset, log.min_offset)
    while position < log.max_offset:
        position = log.skip_blank(position)
        if position >= log.max_offset:
            return
        try:
            record = log.record(position)
        except (StoreCorrupt, MessageNotFound) as error:
            behind = _behind(log, position)
            yield Damage(position, behind, str(error))
            position = behind
        else:
            yield record
            position += record.size


def _behind(log: CommitLog, position: int) -> int:
    """Where to go on behind the damage at `position`."""
    file = log.files.file_at(position)
    at = position - file.start
    if is_marked(file, at):  # what a body has in it that looks like a record is none
        with contextlib.suppress(StoreCorrupt):
            following = position + layout.measure(file.view, at, file.size, check_crc=False)
            if following >= log.max_offset:
                return log.max_offset
            if log.is_marked(following) or log.skip_blank(following) != following:
                return following
    limit = min(at + _SEARCHED_BYTES, file.size)
    found = next_sound_in(file, at + 1, limit)
    return min(log.max_offset, file.start + (limit if found < 0 else found))
