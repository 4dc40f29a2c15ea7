"""The CRC-32 of bodies: zlib's function, or a faster one with the same values.

Checksums are most of the cost of a large body. The storage package depends on no library for them. The services and the
client depend on one and install its function with `use`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

Crc32 = Callable[[bytes | bytearray | memoryview], int]

_PROBE: Final = bytes(range(256)) * 9

#: The function in use. Look it up at each use, because `use` replaces it.
crc32: Crc32 = zlib.crc32


def use(quicker: Crc32) -> None:
    """Use `quicker` for all checksums that this process computes from now on.

    Raises:
        ValueError: its values differ from zlib's.
    """
    global crc32  # noqa: PLW0603 - one choice for the process
    for length in (0, 1, 100, 1024, len(_PROBE)):
        if quicker(_PROBE[:length]) != zlib.crc32(_PROBE[:length]):
            raise ValueError(f"{quicker!r} is not the CRC-32 that records have")
    crc32 = quicker
