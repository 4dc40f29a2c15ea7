"""A small file that holds its value twice, each copy with a checksum.

It is for files that decide about other data. If a bit flips in one copy, the other copy is used; if both copies are
damaged, this is detected. The file is two frames (`journal_frames`) of the same value.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.storage.journal.journal_frames import HEAD, decode_frames, encode_frame

#: The position of the first frame's payload, for readers that read only the beginning of a file.
PAYLOAD_AT: Final = HEAD.size
_log = logging.getLogger(__name__)


def kept_twice(value: list[Any]) -> bytes:
    """Return the content of a file that holds `value` twice."""
    return encode_frame(tuple(value)) * 2


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
