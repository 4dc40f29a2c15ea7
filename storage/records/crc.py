"""The CRC-32 of a body: zlib's, or a quicker function of the same values that the process was given.

Checksums are most of what a large body costs. Storage depends on no library for it; the services and the client,
which do, hand theirs in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

Crc32 = Callable[[bytes | bytearray | memoryview], int]

_PROBE: Final = bytes(range(256)) * 9

#: What is in use; look it up at each use.
crc32: Crc32 = zlib.crc32


def use(quicker: Crc32) -> None:
    """Take `quicker` for all checksums that this process computes from now on.

    Raises:
        ValueError: its values are not zlib's.
    """
    global crc32  # noqa: PLW0603 - it is the process's choice
    for length in (0, 1, 100, 1024, len(_PROBE)):
        if quicker(_PROBE[:length]) != zlib.crc32(_PROBE[:length]):
            raise ValueError(f"{quicker!r} is not the CRC-32 that records have")
    crc32 = quicker
