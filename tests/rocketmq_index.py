"""Read index files as RocketMQ does, to check files written by RayMQ."""

from __future__ import annotations

import struct
from pathlib import Path

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 units, 32 bits, signed."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def index_files(folder: Path) -> list[Path]:
    """Return the files of an index, oldest first; names are times of 17 digits."""
    paths = sorted(folder.iterdir())
    assert all(len(path.name) == 17 and path.name.isdigit() for path in paths)
    return paths


def find(folder: Path, slots: int, topic: str, key: str, begin_ms: int, end_ms: int, limit: int = 64) -> list[int]:
    """Return the physical offsets that RocketMQ's index finds, newest first."""
    code = abs(java_hash(f"{topic}#{key}"))
    code = 0 if code == 1 << 31 else code
    found: list[int] = []
    for path in reversed(index_files(folder)):
        content = path.read_bytes()
        file_begin, file_end, _, _, _, count = HEADER.unpack_from(content)
        if not (begin_ms <= file_end and end_ms >= file_begin):
            continue
        (number,) = struct.unpack_from(">i", content, HEADER.size + code % slots * 4)
        while 0 < number <= count and count > 1 and len(found) < limit:
            entry = ENTRY.unpack_from(content, HEADER.size + slots * 4 + number * ENTRY.size)
            entry_code, physical_offset, seconds, previous = entry
            at = file_begin + seconds * 1000
            if entry_code == code and begin_ms <= at <= end_ms:
                found.append(physical_offset)
            if previous == number or at < begin_ms:
                break
            number = previous
        if file_begin < begin_ms or len(found) >= limit:
            break
    return found
