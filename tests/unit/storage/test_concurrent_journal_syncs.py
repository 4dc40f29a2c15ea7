"""Test that synced journal frames survive power loss when two threads sync the journal.

Each test stops a thread right before one of its syncs, lets the other one sync, and then the machine loses power.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raymq.storage.errors import StoreError, StoreFailed
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.journal import Journal
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


def after_power_loss(disk: Stopping, luck: float = 0.0) -> list[tuple[Any, ...]]:
    lost = disk.root.parent / f"lost {luck}"
    disk.after_power_loss(lost, random.Random(1), luck)
    return Journal(lost / "j", writable=False).entries


def open_journal(disk: Stopping) -> Journal:
    journal = Journal(disk.root / "j", writable=True)
    journal.append(("a",))
    journal.sync()
    disk.remember_all()
    return journal


@pytest.mark.parametrize("at", [1, 2, 3], ids=["before its data", "before the other data", "before the name"])
def test_second_sync_does_not_rely_on_an_unfinished_first_sync(disk: Stopping, at: int) -> None:
    # The first sync took over the file's name, and the second one promised frames of a file without a name on disk.
    journal = open_journal(disk)
    journal.rotate()
    journal.append(("b",))
    with disk.stopped(journal.sync, at):
        journal.sync()
        found = after_power_loss(disk)
    journal.close()
    assert found == [("a",), ("b",)]


@pytest.mark.parametrize("at", range(1, 7))
def test_sync_during_a_compaction_keeps_all_frames(disk: Stopping, at: int) -> None:
    journal = open_journal(disk)
    journal.rotate()
    journal.append(("b",))
    with disk.stopped(lambda: journal.compact([("all of a",)]), at):
        journal.append(("c",))
        journal.sync()
        found = after_power_loss(disk), after_power_loss(disk, 0.5)
    journal.close()
    for entries in found:
        assert entries[-2:] == [("b",), ("c",)]
        assert ("a",) in entries or ("all of a",) in entries


@pytest.mark.parametrize("at", [1, 2, 3])
def test_sync_during_a_rewrite_keeps_all_frames(disk: Stopping, at: int) -> None:
    # The new file had the name, but not on disk, and a sync of the new file promised the old file's frames.
    journal = open_journal(disk)
    journal.append(("b",))
    with disk.stopped(lambda: journal.rewrite([("all of a and b",)]), at):
        journal.sync()
        found = after_power_loss(disk), after_power_loss(disk, 0.5)
    journal.close()
    for entries in found:
        assert entries in ([("a",), ("b",)], [("all of a and b",)])


def test_sync_after_a_failed_rewrite_fails(tmp_path: Path) -> None:
    # The new file with the old frames could be synced, but not its name.
    (tmp_path / "s").mkdir()
    disk = Disk(tmp_path / "s", fail_at=4)
    failures: list[StoreError] = []
    with replaced(disk):
        journal = Journal(disk.root / "j", writable=True, on_failure=failures.append)
        journal.append(("a",))
        journal.sync()
        disk.remember_folder(disk.root)
        journal.append(("b",))
        disk.syncs = 2  # The next sync is of the new file, then of its name.
        with pytest.raises(StoreFailed):
            journal.rewrite([("all of a and b",)])
        assert failures
        with pytest.raises(StoreFailed):
            journal.sync()
        journal.close()
    disk.close()
