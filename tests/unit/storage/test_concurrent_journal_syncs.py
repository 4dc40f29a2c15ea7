"""Test that synced changes survive power loss when two threads sync a journal.

Each test stops a thread right before one of its syncs, lets the other one sync, and then the machine loses power.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raymq.storage.errors import StoreError, StoreFailed
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.journaled_table import JournaledTable
from raymq.storage.journal.state_journal import StateJournal
from tests.crash.power_loss import Disk


class Stopping(Disk):
    """Stop the threads of `stopped` before their `at`-th sync."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._stops: dict[int, list[Any]] = {}
        self.before_sync = self._wait

    def _wait(self) -> None:
        stop = self._stops.get(threading.get_ident())
        if stop is not None:
            stop[0] -= 1
            if stop[0] == 0:
                stop[1].set()
                assert stop[2].wait(10)

    @contextmanager
    def stopped(self, call: Callable[[], object], at: int) -> Iterator[None]:
        """Stop another thread before its `at`-th sync in `call` until the block ends."""
        there, go_on = threading.Event(), threading.Event()

        def run() -> None:
            self._stops[threading.get_ident()] = [at, there, go_on]
            call()
            del self._stops[threading.get_ident()]  # another thread may get this number
            there.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert there.wait(10)
        try:
            yield
        finally:
            go_on.set()
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Stopping]:
    (tmp_path / "s").mkdir()
    made = Stopping(tmp_path / "s")
    with replaced(made):
        yield made
    made.close()


class _Rows(JournaledTable):
    """Hold the names that were added."""

    NUMBER: ClassVar = 1

    def __init__(self) -> None:
        self.names: list[str] = []

    def apply(self, fields: Sequence[Any]) -> None:
        if fields[0] not in self.names:
            self.names.append(fields[0])

    def snapshot(self) -> Iterator[Sequence[Any]]:
        yield from [(name,) for name in self.names.copy()]


class Watched:
    """A lock that tells when a thread waits for it."""

    def __init__(self, lock: Any, waits: threading.Event) -> None:
        self._lock = lock
        self._waits = waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def open_state(disk: Stopping) -> tuple[StateJournal, _Rows]:
    journal = StateJournal(disk.root / "state", [rows := _Rows()], writable=True)
    rows.record("a")
    journal.sync()
    disk.remember_all()
    return journal, rows


def names_after_sync(disk: Stopping, journal: StateJournal, rows: _Rows, other: Callable[[], object], at: int) -> None:
    """Stop `other` before its `at`-th sync, add a row, sync it, and check that a power loss leaves all rows.

    If the sync has to wait for the stopped thread, that one goes on.
    """
    waits = threading.Event()
    journal._syncing = Watched(journal._syncing, waits)  # type: ignore[assignment]
    lost: list[Path] = []

    def add() -> None:
        rows.record("c")
        journal.sync()
        for luck in (0.0, 0.5):
            lost.append(disk.root.parent / f"lost {luck}")
            disk.after_power_loss(lost[-1], random.Random(1), luck)
        waits.set()

    thread = threading.Thread(target=add)
    with disk.stopped(other, at):
        waits.clear()
        thread.start()
        assert waits.wait(10)
    thread.join(10)
    assert len(lost) == 2
    for directory in lost:
        found = _Rows()
        StateJournal(directory / "state", [found], writable=False)
        assert found.names == ["a", "b", "c"]


@pytest.mark.parametrize("at", [1, 2])
def test_second_sync_of_the_state_relies_on_no_unfinished_one(disk: Stopping, at: int) -> None:
    journal, rows = open_state(disk)
    journal._begin_file()
    rows.record("b")
    names_after_sync(disk, journal, rows, journal.sync, at)


@pytest.mark.parametrize("at", range(1, 8))
def test_sync_during_a_snapshot_keeps_all_events(disk: Stopping, at: int) -> None:
    journal, rows = open_state(disk)
    rows.record("b")
    names_after_sync(disk, journal, rows, journal.compact, at)


@pytest.mark.parametrize("at", range(1, 8))
def test_sync_during_a_second_snapshot_keeps_all_events(disk: Stopping, at: int) -> None:
    # The second snapshot makes the first journal superfluous, which is removed.
    journal, rows = open_state(disk)
    journal.compact()
    rows.record("b")
    names_after_sync(disk, journal, rows, journal.compact, at)


@pytest.mark.parametrize("nth", range(1, 6))
def test_sync_after_a_failed_sync_of_the_state_fails(tmp_path: Path, nth: int) -> None:
    (tmp_path / "s").mkdir()
    failures: list[StoreError] = []
    disk = Disk(tmp_path / "s")
    with replaced(disk):
        journal = StateJournal(tmp_path / "s" / "state", [rows := _Rows()], writable=True, on_failure=failures.append)
        rows.record("a")
        journal.sync()
        disk.remember_all()
        journal._begin_file()
        rows.record("b")
        disk._fail_at = disk.syncs + nth
        for call in (journal.sync, journal.compact):
            try:
                call()
            except StoreFailed:
                break
        synced = not failures
        if not synced:
            with pytest.raises(StoreFailed):
                journal.sync()
            with pytest.raises(StoreFailed):
                rows.record("c")
            assert rows.names == ["a", "b"]
        disk.after_power_loss(tmp_path / "lost", random.Random(1), 0.0)
    disk.close()
    found = _Rows()
    StateJournal(tmp_path / "lost" / "state", [found], writable=False)
    assert found.names == ["a", "b"] if synced else found.names in (["a"], ["a", "b"])
