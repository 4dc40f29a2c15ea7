"""Keep copies of damaged bytes for an investigation.

Only the newest copies are kept, so that they do not fill the disk.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil
from raymq.storage.records.record import Buffer

#: The limits of what is kept; the newest copy is always kept.
MAX_COPIES: Final = 100
MAX_COPY_BYTES: Final = 1 << 30


_NAME: Final = re.compile(r"[0-9]{20}")


def list_damaged_copies(folder: Path) -> list[Path]:
    """Return the copies that `save_damaged_copy` made in `folder`; other files are ignored."""
    return [path for path in fileutil.paths_in(folder) if _NAME.fullmatch(path.name)]


def save_damaged_copy(folder: Path, position: int, damaged: Buffer) -> Path:
    """Copy the damaged bytes at `position` of the log, and remove the oldest excess copies.

    Raises:
        StoreFull, StoreFailed: it could not be written.
    """
    fileutil.make_folder(folder)
    path = folder / f"{position:020d}"
    fileutil.replace(path, bytes(damaged))
    with contextlib.suppress(OSError, StoreError):  # the next copy tries again
        _let_go(path)
    return path


def _let_go(path: Path) -> None:
    """Remove the oldest copies beside `path` until the limits are kept."""
    others = [(other.stat(), other) for other in list_damaged_copies(path.parent) if other != path]
    others.sort(key=lambda each: each[0].st_mtime_ns)
    total = sum(status.st_size for status, _ in others) + path.stat().st_size
    while others and (len(others) >= MAX_COPIES or total > MAX_COPY_BYTES):
        status, oldest = others.pop(0)
        total -= status.st_size
        fileutil.unlink(oldest)
