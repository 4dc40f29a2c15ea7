"""Whether the log can be cut at a place: only where a record begins, or the log ends."""

from __future__ import annotations

from typing import Final

from raymq.storage.errors import InvalidInput
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.recovery import next_sound
from raymq.storage.log.shipping import log_bytes

_WINDOW_BYTES: Final = 4 << 20


def check_place(log: CommitLog, place: int) -> None:
    """InvalidInput unless a record begins at that place, or ends there, or a file does.

    The bytes of a body may look like a record of just that place, so the file is walked from its beginning.
    """
    if not log.min_offset <= place <= log.max_offset:
        raise InvalidInput("offset", f"within {log.min_offset}..{log.max_offset}", place)
    if place in (log.min_offset, log.max_offset):
        return
    position = place - place % log.files.file_bytes
    while position < place:
        if log.skip_blank(position) == position and not log.is_marked(position):
            position = next_sound(log, position)  # behind damage, which the log keeps
            continue
        with log_bytes(log, position, min(position + _WINDOW_BYTES, place), whole=True) as found:
            position = found.end
    if position != place:
        raise InvalidInput("offset", "where a record begins or ends", place)
