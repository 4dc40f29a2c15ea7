"""A journal that one thread brings to disk or writes anew while another one syncs it: what a sync promised is there.

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
    """A disk in front of which the threads of `stopped` wait, each at its `at`-th sync."""

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
        """Another thread stands before its `at`-th sync in `call`; it goes on behind the `with`."""
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


def opened(disk: Stopping) -> Journal:
    journal = Journal(disk.root / "j", writable=True)
    journal.append(("a",))
    journal.sync()
    disk.remember_all()
    return journal


@pytest.mark.parametrize("at", [1, 2, 3], ids=["before its data", "before the other data", "before the name"])
def test_a_sync_does_not_trust_the_name_to_one_that_is_not_done(disk: Stopping, at: int) -> None:
    """The first of two took the name on itself, and the second one promised frames in a file that had none on disk."""
    journal = opened(disk)
    journal.rotate()
    journal.append(("b",))
    with disk.stopped(journal.sync, at):
        journal.sync()
        found = after_power_loss(disk)
    journal.close()
    assert found == [("a",), ("b",)]


@pytest.mark.parametrize("at", range(1, 7))
def test_a_sync_beside_the_writing_of_what_is_left(disk: Stopping, at: int) -> None:
    journal = opened(disk)
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
def test_a_sync_beside_a_rewriting(disk: Stopping, at: int) -> None:
    """The new file had the name, but not on disk, and what the old one said was promised by a sync of the new one."""
    journal = opened(disk)
    journal.append(("b",))
    with disk.stopped(lambda: journal.rewrite([("all of a and b",)]), at):
        journal.sync()
        found = after_power_loss(disk), after_power_loss(disk, 0.5)
    journal.close()
    for entries in found:
        assert entries in ([("a",), ("b",)], [("all of a and b",)])


def test_a_sync_after_a_rewriting_that_may_not_last_promises_nothing(tmp_path: Path) -> None:
    """The new file could be synced, and what the old one said was in it; but not its name."""
    (tmp_path / "s").mkdir()
    disk = Disk(tmp_path / "s", fail_at=4)
    failures: list[StoreError] = []
    with replaced(disk):
        journal = Journal(disk.root / "j", writable=True, on_failure=failures.append)
        journal.append(("a",))
        journal.sync()
        disk.remember_folder(disk.root)
        journal.append(("b",))
        disk.syncs = 2  # The next one is of the new file, the one after that of its name.
        with pytest.raises(StoreFailed):
            journal.rewrite([("all of a and b",)])
        assert failures
        with pytest.raises(StoreFailed):
            journal.sync()
        journal.close()
    disk.close()
