"""Replacing files and making names durable: what a call that fails leaves, and how it is told."""

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
def nothing_held_back() -> None:
    """No descriptors are kept for this process by stores of other tests."""
    DESCRIPTOR_RESERVE.close()


def test_a_folder_that_cannot_be_opened_is_told_as_the_disks_failure(tmp_path: Path) -> None:
    """Fault 13.12: `sync_directory` raised an OSError that nobody expects."""
    with replaced(FaultyCalls("open", 1, errno.EMFILE)), pytest.raises(StoreBusy, match="EMFILE"):
        fileutil.sync_directory(tmp_path)
    with pytest.raises(StoreFailed, match="ENOENT"):
        fileutil.sync_directory(tmp_path / "gone")


@pytest.mark.parametrize("nth", [1, 2])
def test_without_descriptors_a_file_keeps_its_content(tmp_path: Path, nth: int) -> None:
    path = tmp_path / "file"
    fileutil.replace(path, b"old")
    with replaced(FaultyCalls("open", nth, errno.EMFILE)), pytest.raises(StoreBusy):
        fileutil.replace(path, b"new")
    assert path.read_bytes() == b"old"
    fileutil.replace(path, b"new")
    assert path.read_bytes() == b"new"
