"""Test the search for bytes in a mapped file, which never reads behind its end."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from raymq.storage.files.mapped_file import MappedFile

PAGE = 4096
NEEDLE = b"\xda\xa3\x20"


@pytest.mark.parametrize("place", [0, 1, PAGE - 2, PAGE, 2 * PAGE - 4, 2 * PAGE - 3])
def test_bytes_are_found_at_every_place(tmp_path: Path, place: int) -> None:
    file = MappedFile(tmp_path / f"{0:020}", 0, 2 * PAGE, writable=True)
    file.view[place : place + len(NEEDLE)] = NEEDLE
    assert file.find(NEEDLE, 0, file.size) == place
    assert file.find(NEEDLE, place, file.size) == place
    assert file.find(NEEDLE, place + 1, file.size) == -1
    assert file.find(NEEDLE, 0, place + len(NEEDLE) - 1) == -1
    file.close()


def test_search_does_not_read_behind_the_last_byte(tmp_path: Path) -> None:
    # CPython before 3.11.5 reads one byte behind, which killed the process where nothing is mapped there.
    files = [MappedFile(tmp_path / f"{n:020}", 0, 4 * PAGE, writable=True) for n in range(64)]
    for file in files[::2]:
        file.close()
    alone = [file for file in files[1::2] if not is_mapped(end_of(file))]
    assert alone
    for file in alone:
        file.view[-2:] = NEEDLE[:2]
        assert file.find(NEEDLE, 0, file.size) == -1
    for file in files[1::2]:
        file.close()


def end_of(file: MappedFile) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(file.view)) + file.size


def is_mapped(address: int) -> bool:
    ranges = (line.split(maxsplit=1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)
