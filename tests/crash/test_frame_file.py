"""Test that a file of frames keeps its entries when a rewrite of it fails or is killed."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.storage import failpoints
from raymq.storage.errors import StoreBusy, StoreError, StoreFailed
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.journal.frame_file import FrameFile
from tests.faulty_calls import FaultyCalls, UnsyncedCalls

pytestmark = pytest.mark.crash


class Killed(BaseException):
    """Simulate a kill of the process."""


@pytest.fixture(autouse=True)
def disarm() -> Iterator[None]:
    yield
    failpoints.arm("")


def kill() -> None:
    raise Killed


def append_and_rewrite(journal: FrameFile) -> None:
    journal.append(("x", 2))
    journal.rewrite([("all", 2)])


def read(path: Path) -> list[tuple[object, ...]]:
    return FrameFile(path, writable=False).entries


class FailsAfterRename(UnsyncedCalls):
    """Fail the fsync of the folder after the journal's rename."""

    def __init__(self) -> None:
        self._armed = False

    def rename(self, source: Path, target: Path) -> None:
        FileCalls.rename(self, source, target)
        self._armed = True

    def fsync(self, fd: int) -> None:
        if self._armed:
            self._armed = False
            raise OSError(errno.EIO, "EIO")


@pytest.mark.parametrize("name", ["before_write", "after_write", "before_rename", "after_rename"])
def test_killed_rewrite_keeps_the_entries(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.journal"
    journal = FrameFile(path, writable=True)
    journal.append(("x", 1))
    failpoints.arm(f"frames.{name}", kill)
    with pytest.raises(Killed):
        append_and_rewrite(journal)
    failpoints.arm("")
    known = {"before_write": [("x", 1)], "after_rename": [("all", 2)]}.get(name, [("x", 1), ("x", 2)])
    assert read(path) == known
    again = FrameFile(path, writable=True)
    again.append(("x", 3))
    again.close()
    assert read(path) == [*known, ("x", 3)]


def test_entries_after_a_name_that_was_not_synced_are_kept(tmp_path: Path) -> None:
    journal = FrameFile(tmp_path / "a.journal", writable=True)
    journal.append(("x", 1))
    with replaced(FailsAfterRename()), pytest.raises(StoreFailed):
        journal.rewrite([("all", 1)])
    journal.append(("x", 2))
    journal.close()
    assert read(tmp_path / "a.journal") == [("all", 1), ("x", 2)]


@pytest.mark.parametrize(
    ("kind", "error"), [("open", errno.EMFILE), ("open", errno.ENOSPC), ("write", errno.EIO), ("rename", errno.EIO)]
)
def test_entries_after_a_failed_rewrite_survive(tmp_path: Path, kind: str, error: int) -> None:
    """Guard against fault 13.15: entries went to a file that had lost the journal's name."""
    path = tmp_path / "a.journal"
    journal = FrameFile(path, writable=True)
    journal.append(("x", 1))
    calls = FaultyCalls(kind, 1, error, lasting=True, real=UnsyncedCalls())
    with replaced(calls), contextlib.suppress(StoreBusy, StoreError):
        journal.rewrite([("all", 1)])
    assert calls.failed
    journal.append(("x", 2))
    journal.close()
    assert read(path) == [("x", 1), ("x", 2)]
