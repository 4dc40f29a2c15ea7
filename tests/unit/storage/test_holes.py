"""Test the search for data in a sparse file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raymq.storage.errors import StoreFailed
from raymq.storage.files.holes import data_ranges, last_data


def test_last_nonzero_byte_is_found_behind_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(1 << 20)
        os.pwrite(file.fileno(), b"x", 700_000)
    with path.open("rb") as file:
        assert last_data(file.fileno(), 0, 1 << 20, path) == 700_001
        assert last_data(file.fileno(), 800_000, 1 << 20, path) == 800_000


def test_seek_error_raises_store_failed() -> None:
    # The error used to be a raw OSError. A pipe supports seeks to data as little as a broken disk.
    reading, writing = os.pipe()
    try:
        for ask in (last_data, lambda *arguments: list(data_ranges(*arguments))):
            with pytest.raises(StoreFailed, match="ESPIPE"):
                ask(reading, 0, 100, Path("00000000000000000000"))
    finally:
        os.close(reading)
        os.close(writing)
