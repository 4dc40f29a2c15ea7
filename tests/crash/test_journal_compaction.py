"""Test that commits after a failed compaction of the state journal survive (fault 13.15)."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from raymq.storage.errors import StoreBusy, StoreFailed
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.store import Store
from tests import fork_server
from tests.crash import journal_writer
from tests.crash.journal_writer import COMMITS, Opened, read_newest
from tests.faulty_calls import FaultyCalls, UnsyncedCalls
from tests.store_records import SMALL, append, make_record

pytestmark = pytest.mark.crash

FAULTS = [
    ("open", errno.EMFILE),
    ("open", errno.ENOSPC),
    ("scan", errno.EIO),
    ("duplicate", errno.EMFILE),
    ("write", errno.EIO),
    ("fsync", errno.EIO),
    ("fdatasync", errno.EIO),
    ("rename", errno.EIO),
    ("unlink", errno.EIO),
]


@pytest.fixture(autouse=True)
def compact_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", journal_writer.COMPACT_BYTES)


class FailsForFolder(UnsyncedCalls):
    """Fail the `nth` fsync of a folder: the name of a new file may be lost in a power loss."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def fsync(self, fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            self._left -= 1
            if self._left == 0:
                raise OSError(errno.EIO, "EIO")


@pytest.mark.parametrize("which", ["offsets", "in_flight"])
@pytest.mark.parametrize(("kind", "error"), FAULTS)
def test_commits_after_failed_compaction_survive_reopen(tmp_path: Path, which: str, kind: str, error: int) -> None:
    """Fail each call of a compaction once; the newest acknowledged number survives."""
    nth, failed = 0, True
    while failed:
        nth += 1
        directory = tmp_path / str(nth)
        calls = FaultyCalls(kind, nth, error, real=UnsyncedCalls())
        committed, refused, failures = journal_writer.commit_numbers(directory, which, calls)
        failed = calls.failed
        found = read_newest(directory, which)
        assert found >= committed[-1], (nth, committed, refused)
        assert len(refused) <= 1 or failures, "what can be refused without doubt is tried again later"
        assert bool(failures) <= (kind in ("fsync", "fdatasync")), "only a failed sync leaves anything in doubt"
    assert nth > 3


@pytest.mark.parametrize("which", ["offsets", "in_flight"])
def test_commits_after_failed_compaction_survive_sigkill(tmp_path: Path, which: str) -> None:
    for nth in (1, 2, 3, 4, 5):
        directory = tmp_path / str(nth)
        program = ["-m", "tests.crash.journal_writer"]
        arguments = [str(directory), which, "open", str(nth), str(errno.EMFILE)]
        pipe = subprocess.PIPE
        ended = fork_server.run([*program, *arguments], stdout=pipe, stderr=pipe, text=True, timeout=60)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        failed, last, _, _ = map(int, ended.stdout.split())
        assert failed
        assert last == COMMITS
        assert read_newest(directory, which) == COMMITS


@pytest.mark.parametrize("which", ["offsets", "in_flight"])
def test_failed_sync_of_a_name_is_reported_and_ends_commits(tmp_path: Path, which: str) -> None:
    """Guard against a file whose name is lost in a power loss, with all that was appended to it."""
    committed, refused, failures = journal_writer.commit_numbers(tmp_path, which, FailsForFolder(1))
    assert len(failures) == 1
    assert refused
    assert all(isinstance(error, StoreFailed) for error in refused)
    assert len(committed) + len(refused) == COMMITS - 1
    assert committed == list(range(2, 2 + len(committed))), "nothing is committed after the first refusal"
    assert read_newest(tmp_path, which) >= committed[-1]


def test_store_with_failed_journal_refuses_writes(tmp_path: Path) -> None:
    """Guard against a store that counts as healthy although its tables may lack something."""
    with Store.open(tmp_path / "s", SMALL) as store:
        append(store, make_record())
        store.flush()
        store.consumer_offsets.commit("g", "orders", 0, 1)
        with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
            store.sync_state()
        with pytest.raises(StoreFailed):
            append(store, make_record())
        with pytest.raises(StoreFailed):
            store.consumer_offsets.commit("g", "orders", 0, 0)


@pytest.mark.parametrize("nth", range(1, 7))
def test_compaction_survives_lack_of_descriptors(tmp_path: Path, nth: int) -> None:
    opened = Opened(tmp_path, "offsets")
    opened.commit(1)
    opened.journal._begin_file()
    opened.commit(2)
    with replaced(FaultyCalls("open", nth, errno.EMFILE, lasting=True)), contextlib.suppress(StoreBusy):
        opened.journal.compact()
    assert opened.failures == []
    opened.commit(3)
    opened.journal.sync()
    opened.close()
    assert read_newest(tmp_path, "offsets") == 3
