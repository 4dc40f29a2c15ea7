"""Check that the log may be cut at a position.

It may be cut only where a record begins, or where the log ends.
"""

from __future__ import annotations

from typing import Final

from raymq.storage.errors import InvalidInput
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.log_slice import log_slice
from raymq.storage.log.recovery import find_next_record

_WINDOW_BYTES: Final = 4 << 20


def check_truncation_point(log: CommitLog, place: int) -> None:
    """Raise InvalidInput unless a record or a file begins or ends at `place`.

    A body may contain bytes that look like a record at that physical offset, so the file is walked from its beginning.
    """
    if not log.min_offset <= place <= log.max_offset:
        raise InvalidInput("offset", f"within {log.min_offset}..{log.max_offset}", place)
    if place in (log.min_offset, log.max_offset):
        return
    position = place - place % log.files.file_bytes
    while position < place:
        if log.skip_blank(position) == position and not log.has_record_header(position):
            position = find_next_record(log, position)  # skip damage, which stays in the log
            continue
        with log_slice(log, position, min(position + _WINDOW_BYTES, place), whole=True) as found:
            position = found.end
    if position != place:
        raise InvalidInput("offset", "where a record begins or ends", place)
