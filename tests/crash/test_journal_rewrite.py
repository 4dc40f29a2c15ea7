"""Test that commits after a failed journal rewrite survive: they are in the file that has the journal's name."""

from __future__ import annotations

import contextlib
import errno
import signal
import subprocess
from pathlib import Path

import pytest

from raymq.storage.errors import StoreBusy, StoreError, StoreFailed
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.store import Store
from raymq.storage.tables import consumer_offset_store as progress_module
from raymq.storage.tables import in_flight_messages as in_flight_module
from raymq.storage.tables.journal import Journal
from tests import fork_server
from tests.crash import journal_writer
from tests.crash.journal_writer import COMMITS, read_newest
from tests.faulty_calls import FaultyCalls, UnsyncedCalls
from tests.store_records import SMALL, append, make_record

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
FAULTS = [
    ("open", errno.EMFILE),
    ("open", errno.ENOSPC),
    ("write", errno.EIO),
    ("fsync", errno.EIO),
    ("rename", errno.EIO),
]


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_FOLD_BYTES", journal_writer.REWRITE_BYTES)
    monkeypatch.setattr(in_flight_module, "_REWRITE_BYTES", journal_writer.REWRITE_BYTES)


class FailsAfterRename(UnsyncedCalls):
    """Fail the fsync of the folder after the journal's `nth` rename."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._armed = False

    def rename(self, source: Path, target: Path) -> None:
        FileCalls.rename(self, source, target)
        if target.name == "journal":
            self._left -= 1
            self._armed = self._left == 0

    def fsync(self, fd: int) -> None:
        if self._armed:
            self._armed = False
            raise OSError(errno.EIO, "EIO")


@pytest.mark.parametrize("which", ["progress", "in_flight"])
@pytest.mark.parametrize(("kind", "error"), FAULTS)
def test_commits_after_failed_rewrite_survive_reopen(tmp_path: Path, which: str, kind: str, error: int) -> None:
    """Guard against fault 13.15: each call of a rewrite fails once; the newest acknowledged number survives."""
    nth, failed = 0, True
    while failed:
        nth += 1
        directory = tmp_path / str(nth)
        directory.mkdir()
        calls = FaultyCalls(kind, nth, error, real=UnsyncedCalls())
        committed, refused, failures = journal_writer.commit_numbers(directory, which, calls)
        failed = calls.failed
        found = read_newest(directory, which)
        assert found >= committed[-1], (nth, committed, refused)
        assert len(refused) <= 1 or failures, "what can be refused without doubt is tried again later"
    assert nth > 3


@pytest.mark.parametrize("which", ["progress", "in_flight"])
def test_commits_after_failed_rewrite_survive_sigkill(tmp_path: Path, which: str) -> None:
    """Guard against fault 13.15 in a process that is killed."""
    for nth in (2, 3, 4, 5):
        directory = tmp_path / str(nth)
        directory.mkdir()
        program = ["-m", "tests.crash.journal_writer"]
        arguments = [str(directory), which, "open", str(nth), str(errno.EMFILE)]
        pipe = subprocess.PIPE
        ended = fork_server.run([*program, *arguments], stdout=pipe, stderr=pipe, text=True, timeout=60)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        failed, last, _, _ = map(int, ended.stdout.split())
        assert failed
        assert last == COMMITS
        assert read_newest(directory, which) == COMMITS


@pytest.mark.parametrize("which", ["progress", "in_flight"])
def test_failure_after_rename_is_reported_and_ends_commits(tmp_path: Path, which: str) -> None:
    """Guard against fault 13.15: after a power loss the new file's name may be lost, with all that was appended."""
    committed, refused, failures = journal_writer.commit_numbers(tmp_path, which, FailsAfterRename(1))  # type: ignore[arg-type]
    assert len(failures) == 1
    assert all(isinstance(error, StoreFailed) for error in refused)
    assert len(committed) + len(refused) == COMMITS - 1
    assert committed == list(range(2, 2 + len(committed))), "nothing is committed after the first refusal"
    assert read_newest(tmp_path, which) >= committed[-1]


def test_store_with_failed_journal_refuses_writes(tmp_path: Path) -> None:
    """Guard against fault 13.15: the failure marks the store as unhealthy."""
    with Store.open(tmp_path / "s", SMALL) as store:
        append(store, make_record())
        journal = store._parts.progress.journal
        journal._on_failure(StoreFailed("the disk fails"))
        with pytest.raises(StoreFailed):
            append(store, make_record())


@pytest.mark.parametrize("nth", range(1, 6))
def test_rewrite_of_rotated_journal_survives_lack_of_descriptors(tmp_path: Path, nth: int) -> None:
    """Removing a rotated file opened its folder; without descriptors this made the store refuse all writes."""
    failures: list[StoreError] = []
    journal = Journal(tmp_path / "a.journal", writable=True, on_failure=failures.append)
    journal.append(("x", 1))
    journal.rotate()
    journal.append(("x", 2))
    with replaced(FaultyCalls("open", nth, errno.EMFILE, lasting=True)), contextlib.suppress(StoreBusy):
        journal.rewrite([("all", 2)])
    assert failures == []
    journal.append(("x", 3))
    journal.close()
    entries = Journal(tmp_path / "a.journal", writable=False).entries
    assert entries in ([("x", 1), ("x", 2), ("x", 3)], [("all", 2), ("x", 3)])
    assert (len(entries) == 2) == (nth > 3), "the folder, for its names too, and the new file are all that it takes"
