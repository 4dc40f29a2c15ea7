"""Test that changes by other threads in a replica's directory invalidate its sequence number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.storage.errors import StateMismatch
from raymq.storage.files import file_calls, fileutil
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.state.sequence_file import SequenceFile
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from tests.polling import poll_until
from tests.state_shipping import ship_state, state_of, take_snapshot


class HeldCalls(FileCalls):
    """Block one kind of call on one file until the test releases it."""

    def __init__(self) -> None:
        self.kind = ""
        self.is_held = threading.Event()
        self._may_go = threading.Event()

    def hold(self, kind: str) -> None:
        """Have calls of the kind wait, on `held.json` and its temporary file."""
        self.kind = kind
        self.is_held.clear()
        self._may_go.clear()

    def release(self) -> None:
        self._may_go.set()

    def _wait(self, kind: str, path: str) -> None:
        if kind == self.kind and "held.json" in path:
            self.is_held.set()
            assert self._may_go.wait(20)

    def fsync(self, fd: int) -> None:
        self._wait("fsync", Path(f"/proc/self/fd/{fd}").resolve().name)
        super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._wait("rename", source.name)
        super().rename(source, target)


class Threads:
    """Run a master's threads that are in the middle of a file change."""

    def __init__(self, calls: HeldCalls) -> None:
        self._calls = calls
        self._threads: list[threading.Thread] = []

    def begin(self, path: Path, kind: str = "fsync") -> None:
        """Start a thread that replaces a file and waits for the disk."""
        self._calls.hold(kind)
        self._threads.append(threading.Thread(target=fileutil.replace, args=(path, b"late")))
        self._threads[-1].start()
        assert self._calls.is_held.wait(20)

    def finish(self) -> None:
        """Release the threads and wait for their end."""
        self._calls.release()
        while self._threads:
            self._threads.pop().join()


@pytest.fixture
def threads() -> Iterator[Threads]:
    calls = HeldCalls()
    with replaced(calls):
        made = Threads(calls)
        yield made
        made.finish()
        assert file_calls.current is calls, "somebody was not closed"


@pytest.fixture
def master(tmp_path: Path, threads: Threads) -> Iterator[StateRecorder]:
    """Create a master's recorder with one file in its directory."""
    made = recorder(tmp_path / "1")
    fileutil.make_folder(tmp_path / "1" / "config")
    fileutil.replace(tmp_path / "1" / "config" / "held.json", b"first")
    yield made
    made.stop()


@pytest.fixture
def other(tmp_path: Path, master: StateRecorder) -> Iterator[StateReplica]:
    """Create a replica that has all changes of the master."""
    made = StateReplica(tmp_path / "2")
    take_snapshot(master, made)
    yield made
    made.close()


def recorder(directory: Path, predecessor: StateReplica | None = None) -> StateRecorder:
    return StateRecorder.begin(directory, log_end=lambda: 0, predecessor=predecessor)


def held_file(directory: Path) -> Path:
    return directory / "config" / "held.json"


def test_late_write_of_a_former_master_invalidates_its_state(
    threads: Threads, master: StateRecorder, other: StateReplica
) -> None:
    threads.begin(held_file(master.directory))
    ship_state(master, other)
    former = StateReplica(master.directory, predecessor=master)
    assert former.last == other.last == master.last
    threads.finish()
    assert held_file(master.directory).read_bytes() == b"late"
    assert former.last == 0, "it goes on as if nothing had happened"
    again = recorder(master.directory, former)
    assert again.folded > other.last, "the other replica believes that it has everything"
    take_snapshot(again, other)
    assert state_of(other.directory) == state_of(master.directory)
    again.stop()


def test_pending_write_of_a_former_master_is_recorded_as_inexact(
    tmp_path: Path, threads: Threads, master: StateRecorder
) -> None:
    former = StateReplica(master.directory, predecessor=master)
    threads.begin(held_file(master.directory), "rename")
    numbers = SequenceFile(tmp_path / "1")  # as the next process finds it
    assert not numbers.is_exact
    numbers.close()
    threads.finish()
    former.close()


@pytest.mark.parametrize("kind", ["fsync", "rename"])
def test_snapshot_with_a_concurrent_foreign_write_is_rejected(
    tmp_path: Path, threads: Threads, master: StateRecorder, other: StateReplica, kind: str
) -> None:
    # The other replica is master now; the former master takes its state, and one of its old threads writes.
    if kind == "fsync":
        threads.begin(held_file(master.directory))
    former = StateReplica(master.directory, predecessor=master)
    if kind == "rename":
        threads.begin(held_file(master.directory), "rename")
    elected = recorder(other.directory, other)
    snapshot = elected.snapshot()
    former.begin_snapshot()
    for part in snapshot.parts():
        former.load(part)
    if kind == "fsync":
        fileutil.replace(tmp_path / "1" / "config" / "another.json", b"foreign")
    with pytest.raises(StateMismatch):
        former.end_snapshot(snapshot.sequence)
    snapshot.close()
    assert former.last == 0
    fileutil.make_folder(master.directory / "config")
    (master.directory / "config" / "held.json.tmp").touch()  # the waiting thread's temporary file was removed
    threads.finish()
    take_snapshot(elected, former)
    assert former.last == elected.last
    assert state_of(former.directory) == state_of(elected.directory)
    elected.stop()
    former.close()


def test_late_write_in_a_new_epoch_requires_snapshots(
    threads: Threads, master: StateRecorder, other: StateReplica
) -> None:
    # The thread was within its change when its epoch ended; the new recorder gets no report of the change.
    former = StateReplica(master.directory, predecessor=master)
    threads.begin(held_file(master.directory), "rename")
    again = recorder(master.directory, former)
    take_snapshot(again, other)
    before = again.last
    threads.finish()
    assert again.folded > before
    assert held_file(master.directory).read_bytes() == b"late"
    take_snapshot(again, other)
    assert state_of(other.directory) == state_of(master.directory)
    again.stop()


def test_write_to_a_file_open_since_a_former_epoch_is_foreign(master: StateRecorder, other: StateReplica) -> None:
    path = master.directory / "raymq" / "some.journal"
    fd = fileutil.open_for_append(path)
    fileutil.write_all(fd, b"one", path)
    ship_state(master, other)
    former = StateReplica(master.directory, predecessor=master)
    again = recorder(master.directory, former)
    assert again.last == master.last
    fileutil.write_all(fd, b"two", path)
    fileutil.close(fd)
    assert again.folded > other.last
    again.stop()


def test_changes_by_the_replica_itself_are_not_foreign(
    tmp_path: Path, master: StateRecorder, other: StateReplica
) -> None:
    for name in ("a", "b"):
        fileutil.replace(tmp_path / "1" / "raymq" / name, b"x")
        ship_state(master, other)
    other.sync()
    assert other.last == master.last


def test_changes_outside_the_state_are_allowed(tmp_path: Path, master: StateRecorder, other: StateReplica) -> None:
    fileutil.replace(tmp_path / "2" / "raymq" / "replica.json", b"{}")
    fileutil.replace(tmp_path / "2" / "checkpoint", b"x")
    assert other.last == master.last


def test_invalidate_marks_the_state_inexact_at_shutdown(
    tmp_path: Path, threads: Threads, master: StateRecorder
) -> None:
    # The process stops while one of its threads is in the middle of a change.
    threads.begin(held_file(master.directory))
    former = StateReplica(master.directory, predecessor=master)
    former.invalidate()
    former.close()
    threads.finish()
    poll_until(lambda: held_file(master.directory).read_bytes() == b"late", 5)
    numbers = SequenceFile(tmp_path / "1")
    assert not numbers.is_exact
    numbers.close()
