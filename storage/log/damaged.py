"""Copies of damaged bytes, for who looks into what happened: the newest of them, so that they do not fill the disk."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from raymq.storage.files import fileutil
from raymq.storage.records.record import Buffer

#: What is kept at most; the newest copy always is.
MOST_COPIES: Final = 100
MOST_BYTES: Final = 1 << 30


_NAME: Final = re.compile(r"[0-9]{20}")


def copies_in(folder: Path) -> list[Path]:
    """The copies that `keep_copy` has made there, and nothing else that may be in it."""
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []


def keep_copy(folder: Path, position: int, damaged: Buffer) -> Path:
    """Write a copy of what lay at `position` of the log, and let the oldest go that are too many.

    Raises:
        StoreFull, StoreFailed: it could not be written.
    """
    fileutil.make_folder(folder)
    path = folder / f"{position:020d}"
    fileutil.replace(path, bytes(damaged))
    others = sorted((other for other in folder.iterdir() if other != path), key=lambda other: other.stat().st_mtime_ns)
    held = sum(other.stat().st_size for other in others) + path.stat().st_size
    while others and (len(others) >= MOST_COPIES or held > MOST_BYTES):
        oldest = others.pop(0)
        held -= oldest.stat().st_size
        with contextlib.suppress(OSError):
            oldest.unlink()
    return path
