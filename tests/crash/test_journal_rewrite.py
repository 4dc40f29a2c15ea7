"""A journal that is rewritten on a disk that fails: what was committed afterwards is in the file that has the name."""

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
from tests.crash.journal_writer import COMMITS, newest_of
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
def rewritten_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_FOLD_BYTES", journal_writer.REWRITE_BYTES)
    monkeypatch.setattr(in_flight_module, "_REWRITE_BYTES", journal_writer.REWRITE_BYTES)


class FailsAfterRename(UnsyncedCalls):
    """The fsync of the folder after the journal's `nth` renaming fails."""

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
def test_what_is_committed_after_a_failed_rewriting_is_there_after_a_kill(
    tmp_path: Path, which: str, kind: str, error: int
) -> None:
    """Fault 13.15: each call of a rewriting fails once; the newest number that was acknowledged is there."""
    nth, failed = 0, True
    while failed:
        nth += 1
        directory = tmp_path / str(nth)
        directory.mkdir()
        calls = FaultyCalls(kind, nth, error, real=UnsyncedCalls())
        committed, refused, failures = journal_writer.write(directory, which, calls)
        failed = calls.failed
        found = newest_of(directory, which)
        assert found >= committed[-1], (nth, committed, refused)
        assert len(refused) <= 1 or failures, "what can be refused without doubt is tried again later"
    assert nth > 3


@pytest.mark.parametrize("which", ["progress", "in_flight"])
def test_a_killed_process_leaves_what_it_committed_after_a_failed_rewriting(tmp_path: Path, which: str) -> None:
    """Fault 13.15, with a process that dies."""
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
        assert newest_of(directory, which) == COMMITS


@pytest.mark.parametrize("which", ["progress", "in_flight"])
def test_a_failure_after_the_renaming_is_told_and_ends_all_commits(tmp_path: Path, which: str) -> None:
    """Fault 13.15: the new file's name may not outlive the machine, and what is appended to it neither."""
    committed, refused, failures = journal_writer.write(tmp_path, which, FailsAfterRename(1))  # type: ignore[arg-type]
    assert len(failures) == 1
    assert all(isinstance(error, StoreFailed) for error in refused)
    assert len(committed) + len(refused) == COMMITS - 1
    assert committed == list(range(2, 2 + len(committed))), "nothing is committed after the first refusal"
    assert newest_of(tmp_path, which) >= committed[-1]


def test_a_store_whose_journal_may_be_lost_refuses_writes(tmp_path: Path) -> None:
    """Fault 13.15: the failure is the store's bad health."""
    with Store.open(tmp_path / "s", SMALL) as store:
        append(store, make_record())
        journal = store._parts.progress.journal
        journal._on_failure(StoreFailed("the disk fails"))
        with pytest.raises(StoreFailed):
            append(store, make_record())


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_rewriting_of_a_journal_that_is_diverted_does_without_descriptors(tmp_path: Path, nth: int) -> None:
    """What was diverted was removed by a call that opens the folder: without a descriptor the store refused all."""
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
