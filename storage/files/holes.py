"""Where a sparse file has data: what the file system knows to be a hole is not read."""

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
    """The ranges within start..end that may hold anything but zeros (where the file system knows its holes).

    Raises:
        StoreFailed: the disk does not say; `path` is the file's name in it.
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
            raise fileutil.failed("find the data of", path, error) from error
        yield begin, position


def last_data(fd: int, start: int, end: int, path: Path) -> int:
    """One past the last byte within start..end that is not zero; `start` if all are zero. StoreFailed: see above."""
    last = start
    for begin, stop in data_ranges(fd, start, end, path):
        for at in range(begin, stop, _SCAN_BYTES):
            try:
                content = os.pread(fd, min(_SCAN_BYTES, stop - at), at)
            except OSError as error:
                raise fileutil.failed("read", path, error) from error
            if content != _ZEROS[: len(content)]:  # A hundred times faster than to strip them.
                last = at + len(content.rstrip(b"\0"))
    return last
