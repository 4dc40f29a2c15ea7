"""Find where a sparse file has data; known holes are not read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raymq.storage.files import fileutil

_SCAN_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_SCAN_BYTES)


def data_ranges(fd: int, start: int, end: int, path: Path) -> Iterator[tuple[int, int]]:
    """Yield the ranges within start..end that may hold nonzero bytes.

    The holes come from the file system, as far as it reports them.

    Raises:
        StoreFailed: the file system does not report them; the message contains `path`.
    """
    position = start
    while position < end:
        try:
            begin = os.lseek(fd, position, os.SEEK_DATA)
            if begin >= end:
                return
            position = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise fileutil.io_error("find the data of", path, error) from error
        yield begin, position


def last_data(fd: int, start: int, end: int, path: Path) -> int:
    """Return the position after the last nonzero byte within start..end.

    Return `start` if all bytes are zero. Raise StoreFailed as `data_ranges` does, or if the file cannot be read.
    """
    last = start
    for begin, stop in data_ranges(fd, start, end, path):
        for at in range(begin, stop, _SCAN_BYTES):
            try:
                content = os.pread(fd, min(_SCAN_BYTES, stop - at), at)
            except OSError as error:
                raise fileutil.io_error("read", path, error) from error
            if content != _ZEROS[: len(content)]:  # A hundred times faster than stripping zeros.
                last = at + len(content.rstrip(b"\0"))
    return last
