"""What a master ships to its replicas: the bytes of its log as they lie, as views of the mapping.

Nothing is copied and no record is looked at, unless a shipment is to end where a record does. Bytes before the log's
end never change, so a view is right for as long as it is held, also when the file is deleted meanwhile.
"""

from __future__ import annotations

from raymq.storage.errors import InvalidInput, MessageExpired
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.lease import LentMemory
from raymq.storage.log.record_runs import record_sizes


class LogBytes(LentMemory):
    """Bytes of one file of the log, until `release` (or the end of a `with`).

    Attributes:
        offset: where they lie.
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
        """Where the log goes on behind them."""
        return self.offset + len(self.view)

    def release(self) -> None:
        """Give the mapping back; may be called again. The length is 0 from then on."""
        self.view = memoryview(b"")


def log_bytes(log: CommitLog, begin: int, end: int, *, whole: bool = False) -> LogBytes:
    """The log from `begin` on, up to `end` or to the end of its file, whichever comes first.

    Args:
        begin: with `whole` a place where a record begins, or what fills up a file.
        whole: end where a record does; a record that is longer than what was asked for comes as a whole.

    Raises:
        MessageExpired: `begin` is below the log's minimum.
        InvalidInput: there is nothing of begin..end, or it reaches beyond the log's end.
    """
    if begin < log.min_offset:
        raise MessageExpired(f"offset {begin} is below the log's minimum {log.min_offset}")
    if not begin < end <= log.max_offset:
        raise InvalidInput("end", f"behind {begin}, at most the log's end {log.max_offset}", end)
    file_bytes = log.files.file_bytes
    stop = min(end, begin - begin % file_bytes + file_bytes)
    view = log.view(begin, stop - begin)
    if not whole or stop == log.max_offset or stop % file_bytes == 0:  # these are where a record ends
        return LogBytes(begin, view)
    filled = begin + int(record_sizes(view, begin).sum())
    if filled == begin:
        filled = _first_end(log, begin)
    return LogBytes(begin, log.view(begin, filled - begin))


def _first_end(log: CommitLog, begin: int) -> int:
    """Where what stands at `begin` ends: the rest of the file where no record can be known."""
    behind = log.skip_blank(begin)
    if behind != begin:
        return behind
    file_bytes = log.files.file_bytes
    rest = min(log.max_offset, begin - begin % file_bytes + file_bytes) - begin
    size = int.from_bytes(log.view(begin, 4), "big") if rest >= 4 and log.is_marked(begin) else rest
    return begin + min(size, rest)
