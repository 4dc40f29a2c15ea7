"""Test that the newest copies of damaged bytes are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raymq.storage.log import damaged_copies
from raymq.storage.log.damaged_copies import MAX_COPIES, save_damaged_copy


def copy_offsets(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def set_age(path: Path, number: int) -> None:
    os.utime(path, ns=(number, number))


def test_newest_of_many_damaged_copies_are_kept(tmp_path: Path) -> None:
    # Fault 13.30.
    folder = tmp_path / "damaged"
    for number in range(MAX_COPIES + 20):
        set_age(save_damaged_copy(folder, 10_000 - number, b"x" * 10), number)
    assert copy_offsets(folder) == sorted(10_000 - number for number in range(20, MAX_COPIES + 20))
    assert (folder / f"{10_000 - 50:020d}").read_bytes() == b"x" * 10


def test_large_copies_are_removed_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fault 13.30.
    monkeypatch.setattr(damaged_copies, "MAX_COPY_BYTES", 100)
    for number, size in enumerate((40, 40, 30, 500)):
        set_age(save_damaged_copy(tmp_path, number, bytes(size)), number)
        assert copy_offsets(tmp_path) == [[0], [0, 1], [1, 2], [3]][number]
