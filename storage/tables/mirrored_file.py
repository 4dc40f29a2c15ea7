"""Read former files that hold their value twice, with checksums.

If a bit flips in one copy, the other copy is used; if both copies are damaged, this is detected. The file is two frames
(`journal_frames`) of the same value.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgpack

from raymq.storage.journal.journal_frames import decode_frames

_log = logging.getLogger(__name__)


def decode_mirrored(content: bytes, path: Path) -> Any:
    """Return the value of a file.

    Files of older versions, which hold the value once and without a checksum, are supported.

    Raises:
        ValueError: the content is not a value.
    """
    found = decode_frames(content)
    copies = [*found.entries, *found.behind]
    if not copies:
        return msgpack.unpackb(content)
    if len(copies) == 1:
        _log.error("%s: one of its two copies is damaged; the other one is used", path)
    return list(copies[0])
