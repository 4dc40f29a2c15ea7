"""A small file that decides about others' data: it is in it twice, each time with a checksum.

A bit that flips in one of the two is made good by the other; a file of which neither is what was written is told from
one that is. Two frames (`frames`) of the same value.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.storage.tables.frames import HEAD, framed, read_frames

#: Where the payload of the first frame begins: those that look at the beginning alone find it there.
PAYLOAD_AT: Final = HEAD.size
_log = logging.getLogger(__name__)


def kept_twice(value: list[Any]) -> bytes:
    """What the file has."""
    return framed(tuple(value)) * 2


def told_by(content: bytes, path: Path) -> Any:
    """The value of a file, also of one of an older version, which has it once and without a checksum.

    Raises:
        ValueError: it is none.
    """
    found = read_frames(content)
    told = [*found.entries, *found.behind]
    if not told:
        return msgpack.unpackb(content)
    if len(told) == 1:
        _log.error("%s: one of its two copies is damaged; the other one counts", path)
    return list(told[0])
