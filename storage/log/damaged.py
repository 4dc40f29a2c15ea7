"""Copies of damaged bytes, for who looks into what happened: the newest of them, so that they do not fill the disk."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil
from raymq.storage.records.record import Buffer

#: What is kept at most; the newest copy always is.
MOST_COPIES: Final = 100
MOST_BYTES: Final = 1 << 30


_NAME: Final = re.compile(r"[0-9]{20}")


def copies_in(folder: Path) -> list[Path]:
    """The copies that `keep_copy` has made there, and nothing else that may be in it."""
    return [path for path in fileutil.paths_in(folder) if _NAME.fullmatch(path.name)]


def keep_copy(folder: Path, position: int, damaged: Buffer) -> Path:
    """Write a copy of what lay at `position` of the log, and let the oldest go that are too many.

    Raises:
        StoreFull, StoreFailed: it could not be written.
    """
    fileutil.make_folder(folder)
    path = folder / f"{position:020d}"
    fileutil.replace(path, bytes(damaged))
    with contextlib.suppress(OSError, StoreError):  # the next copy lets more go
        _let_go(path)
    return path


def _let_go(path: Path) -> None:
    """Of the oldest copies beside `path`, until there are no more than may be."""
    others = [(other.stat(), other) for other in copies_in(path.parent) if other != path]
    others.sort(key=lambda each: each[0].st_mtime_ns)
    held = sum(status.st_size for status, _ in others) + path.stat().st_size
    while others and (len(others) >= MOST_COPIES or held > MOST_BYTES):
        status, oldest = others.pop(0)
        held -= status.st_size
        fileutil.unlink(oldest)
