"""Search the log for records that contain some bytes.

Records are separated by their sizes, and none of them is parsed. So the search is almost as fast as one of plain bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.record_scan import record_sizes
from raymq.storage.log.recovery import find_next_record
from raymq.storage.records import record as layout

#: One search reads about this many bytes of the log.
_PART_BYTES: Final = 4 << 20


class FoundRecords(NamedTuple):
    """The result of a search in one part of the log.

    `records` are the found records one after the other, `sizes` are their sizes, and `following` is the physical
    offset behind the searched part.
    """

    records: bytes
    sizes: npt.NDArray[np.int32]
    following: int


def find_records(log: CommitLog, pattern: bytes, begin: int, most: int) -> FoundRecords:
    """Return the records that contain `pattern` in the part of the log from `begin` on.

    The part is a few MiB long, and ends before them if `most` records were found. Damaged bytes are skipped.

    Args:
        begin: the physical offset of a record; the log's minimum counts if it is higher.
    """
    begin, log_end = max(begin, log.min_offset), log.max_offset
    if begin >= log_end:
        return FoundRecords(b"", np.empty(0, np.int32), begin)
    sizes = _sizes_from(log, begin, log_end)
    if not len(sizes):
        behind = log.skip_blank(begin)
        following = behind if behind != begin else find_next_record(log, begin)
        return FoundRecords(b"", sizes, min(following, log_end))
    filled = int(sizes.sum(dtype=np.int64))
    file = log.files.file_at(begin)
    at = begin - file.start
    hit = file.find(pattern, at, at + filled)
    if hit < 0:
        return FoundRecords(b"", sizes[:0], begin + filled)
    ends = (np.cumsum(sizes, dtype=np.int64) + at).tolist()
    found: list[int] = []
    while hit >= 0 and len(found) < most:
        found.append(bisect_right(ends, hit))
        hit = file.find(pattern, ends[found[-1]], ends[-1])
    records = b"".join(file.view[ends[number] - int(sizes[number]) : ends[number]] for number in found)
    return FoundRecords(records, sizes[found], begin + (filled if hit < 0 else ends[found[-1]] - at))


def _sizes_from(log: CommitLog, begin: int, log_end: int) -> npt.NDArray[np.int32]:
    """Return the sizes of the records from `begin` on; none if no record is there."""
    file_end = begin - begin % log.files.file_bytes + log.files.file_bytes
    stop = min(file_end, log_end)
    sizes = record_sizes(log.view(begin, min(_PART_BYTES, stop - begin)), begin)
    if len(sizes) or not log.has_record_header(begin):
        return sizes
    # A record that is longer than a part counts only if something sound follows it.
    size = int.from_bytes(log.view(begin, 4), "big")
    end = begin + size
    is_whole = size >= layout.MIN_RECORD_BYTES and (
        end == stop or (end < stop and (log.has_record_header(end) or log.skip_blank(end) != end))
    )
    return np.array([size] if is_whole else [], np.int32)
