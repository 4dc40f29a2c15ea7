"""Copies of damaged bytes: the newest are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raymq.storage.log import damaged_copies
from raymq.storage.log.damaged_copies import MAX_COPIES, save_damaged_copy


def named(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def aged(path: Path, number: int) -> None:
    os.utime(path, ns=(number, number))


def test_of_many_copies_the_newest_are_kept(tmp_path: Path) -> None:
    """Fault 13.30."""
    folder = tmp_path / "damaged"
    for number in range(MAX_COPIES + 20):
        aged(save_damaged_copy(folder, 10_000 - number, b"x" * 10), number)
    assert named(folder) == sorted(10_000 - number for number in range(20, MAX_COPIES + 20))
    assert (folder / f"{10_000 - 50:020d}").read_bytes() == b"x" * 10


def test_large_copies_make_room_for_a_new_one_which_is_always_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 13.30."""
    monkeypatch.setattr(damaged_copies, "MAX_COPY_BYTES", 100)
    for number, size in enumerate((40, 40, 30, 500)):
        aged(save_damaged_copy(tmp_path, number, bytes(size)), number)
        assert named(tmp_path) == [[0], [0, 1], [1, 2], [3]][number]
