"""Test the replacement of files and syncs of folders: state and errors after a failed call."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raymq.storage.errors import StoreBusy, StoreFailed
from raymq.storage.files import fileutil
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE
from raymq.storage.files.file_calls import replaced
from tests.faulty_calls import FaultyCalls


@pytest.fixture(autouse=True)
def no_descriptor_reserve() -> None:
    """Close the descriptor reserve that stores of other tests left."""
    DESCRIPTOR_RESERVE.close()


def test_sync_directory_raises_a_store_error(tmp_path: Path) -> None:
    # Fault 13.12: `sync_directory` used to raise a raw OSError.
    with replaced(FaultyCalls("open", 1, errno.EMFILE)), pytest.raises(StoreBusy, match="EMFILE"):
        fileutil.sync_directory(tmp_path)
    with pytest.raises(StoreFailed, match="ENOENT"):
        fileutil.sync_directory(tmp_path / "gone")


@pytest.mark.parametrize("nth", [1, 2])
def test_failed_replace_keeps_the_old_content(tmp_path: Path, nth: int) -> None:
    path = tmp_path / "file"
    fileutil.replace(path, b"old")
    with replaced(FaultyCalls("open", nth, errno.EMFILE)), pytest.raises(StoreBusy):
        fileutil.replace(path, b"new")
    assert path.read_bytes() == b"old"
    fileutil.replace(path, b"new")
    assert path.read_bytes() == b"new"
