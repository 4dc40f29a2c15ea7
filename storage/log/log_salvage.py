"""Walk over a damaged log: report each damaged range and continue behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raymq.storage.errors import MessageNotFound, StoreCorrupt
from raymq.storage.log.commit_log import CommitLog, has_record_header
from raymq.storage.log.recovery import find_next_record_in
from raymq.storage.records import record as layout
from raymq.storage.records.record import Record

#: The bytes searched at once for the next record; the walk yields also after a search without result.
_SEARCHED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A part of the log without a sound record.

    If the next sound record does not begin at its end, another damaged range follows.

    Attributes:
        begin, end: physical offsets.
        reason: what is wrong at the beginning of the range.
    """

    begin: int
    end: int
    reason: str


def salvage_walk(log: CommitLog, physical_offset: int) -> Iterator[Record | DamagedRange]:
    """Yield the sound records from `physical_offset` on, and the damaged ranges between them."""
    position = max(physical_offset, log.min_offset)
    while position < log.max_offset:
        position = log.skip_blank(position)
        if position >= log.max_offset:
            return
        try:
            record = log.record(position)
        except (StoreCorrupt, MessageNotFound) as error:
            behind = _behind(log, position)
            yield DamagedRange(position, behind, str(error))
            position = behind
        else:
            yield record
            position += record.size


def _behind(log: CommitLog, position: int) -> int:
    """Return where the walk continues behind the damage at `position`."""
    file = log.files.file_at(position)
    at = position - file.start
    # skip by the record's size, because its body may contain bytes that look like a record
    if has_record_header(file, at):
        with contextlib.suppress(StoreCorrupt):
            following = position + layout.measure(file.view, at, file.size, check_crc=False)
            if following >= log.max_offset:
                return log.max_offset
            if log.has_record_header(following) or log.skip_blank(following) != following:
                return following
    limit = min(at + _SEARCHED_BYTES, file.size)
    found = find_next_record_in(file, at + 1, limit)
    return min(log.max_offset, file.start + (limit if found < 0 else found))
