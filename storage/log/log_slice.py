"""Provide the log's bytes that a master ships to replicas, as views of the mapping.

Nothing is copied, and records are parsed only if a slice has to end at the end of a record. Bytes before the log's end
never change, so a view stays right as long as it is held, also after the file was deleted.
"""

from __future__ import annotations

from raymq.storage.errors import InvalidInput, MessageExpired
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.lease import BorrowedMemory
from raymq.storage.log.record_scan import record_sizes


class LogSlice(BorrowedMemory):
    """Bytes of one file of the log, until `release` (or the end of a `with`).

    Attributes:
        offset: the physical offset of the first byte.
        view: the bytes, a slice of the mapping, which it keeps alive.
    """

    __slots__ = ("offset", "view")

    def __init__(self, offset: int, view: memoryview) -> None:
        self.offset = offset
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    @property
    def end(self) -> int:
        """Return the physical offset after the last byte."""
        return self.offset + len(self.view)

    def release(self) -> None:
        """Release the mapping and set the length to 0; may be called again."""
        self.view = memoryview(b"")


def log_slice(log: CommitLog, begin: int, end: int, *, whole: bool = False) -> LogSlice:
    """Return the log's bytes from `begin` to `end`, within one file.

    The slice ends at `end` or at the end of the file, whichever comes first.

    Args:
        begin: with `whole` a position where a record or a BLANK begins.
        whole: end the slice at the end of a record; a record that is longer than the requested range is returned as a
            whole.

    Raises:
        MessageExpired: `begin` is below the log's minimum.
        InvalidInput: the range begin..end is empty, or reaches beyond the log's end.
    """
    if begin < log.min_offset:
        raise MessageExpired(f"offset {begin} is below the log's minimum {log.min_offset}")
    if not begin < end <= log.max_offset:
        raise InvalidInput("end", f"behind {begin}, at most the log's end {log.max_offset}", end)
    file_bytes = log.files.file_bytes
    stop = min(end, begin - begin % file_bytes + file_bytes)
    view = log.view(begin, stop - begin)
    if not whole or stop == log.max_offset or stop % file_bytes == 0:  # a record ends at these positions
        return LogSlice(begin, view)
    filled = begin + int(record_sizes(view, begin).sum())
    if filled == begin:
        filled = _first_end(log, begin)
    return LogSlice(begin, log.view(begin, filled - begin))


def _first_end(log: CommitLog, begin: int) -> int:
    """Return where the record or BLANK at `begin` ends.

    Return the end of the file (or of the log) if no record can be recognized there.
    """
    behind = log.skip_blank(begin)
    if behind != begin:
        return behind
    file_bytes = log.files.file_bytes
    rest = min(log.max_offset, begin - begin % file_bytes + file_bytes) - begin
    size = int.from_bytes(log.view(begin, 4), "big") if rest >= 4 and log.has_record_header(begin) else rest
    return begin + min(size, rest)
