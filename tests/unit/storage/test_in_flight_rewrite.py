"""Test that in-flight messages are rewritten beside changes, and no kill takes a change back.

Fault 13, beyond the numbers: the in-flight journal was rewritten, with two fsyncs, on a broker's event loop.
"""

from __future__ import annotations

import copy
import errno
import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.tables import in_flight_messages as in_flight_module
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from tests.faulty_calls import FaultyCalls

QUEUES = [("g", "t", 0), ("g", "t", 1), ("h", "t", 0)]


class StoppedAt(FileCalls):
    """Block other threads' calls on a file whose name ends with `name` until `going`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reached = threading.Event()
        self.going = threading.Event()
        #: The calls of this thread that wait for the disk, or change names.
        self.own = 0

    def fsync(self, fd: int) -> None:
        self._at(os.readlink(f"/proc/self/fd/{fd}"))

    def fdatasync(self, fd: int) -> None:
        self._at(os.readlink(f"/proc/self/fd/{fd}"))

    def rename(self, source: Path, target: Path) -> None:
        self._at(str(source))
        super().rename(source, target)

    def _at(self, path: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.own += 1
        elif path.endswith(self._name):
            self.reached.set()
            assert self.going.wait(30)


@pytest.fixture(autouse=True)
def small_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_module, "_REWRITE_BYTES", 400)
    monkeypatch.setattr(in_flight_module, "_STEP_DELIVERIES", 3)


def open_table(directory: Path) -> InFlightTable:
    return InFlightTable(directory / "in_flight.journal", writable=True)


def change(table: InFlightTable, rng: random.Random) -> None:
    """Deliver, redeliver or acknowledge messages of a random queue, or forget the queue."""
    queue = rng.choice(QUEUES)
    known = table.queues.get(queue)
    if known is None:
        begin = rng.randrange(50)  # a group may be reset
        table.deliver(queue, begin + 3, {begin + n: InFlightMessage(rng.randrange(1000), 2, 0, 16) for n in range(3)})
    elif rng.random() < 0.4:
        following = known.next_offset + rng.randrange(1, 4)
        table.deliver(queue, following, {n: InFlightMessage(3, 4, 0, 16) for n in range(known.next_offset, following)})
    elif rng.random() < 0.2:
        again = rng.choice(list(known.deliveries))
        table.deliver(queue, known.next_offset, {again: InFlightMessage(rng.randrange(1000), 5, 1, 16)})
    elif rng.random() < 0.1:
        table.forget(queue)
    else:
        table.acknowledge(queue, rng.sample(list(known.deliveries), rng.randrange(1, len(known.deliveries) + 1)))


def state(table: InFlightTable) -> object:
    return {queue: (each.next_offset, list(each.deliveries.items())) for queue, each in table.queues.items()}


def reopen_after_kill(directory: Path) -> object:
    """Return what repeated openings find in a copy taken while the process ran."""
    found = []
    for rewrite in (False, True, False):
        table = open_table(directory)
        found.append(state(table))
        table.close(rewrite=rewrite)
    assert found[0] == found[1] == found[2]
    return found[0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["journal", ".base.tmp", ".beside"])
def test_changes_continue_during_a_rewrite(tmp_path: Path, name: str, seed: int) -> None:
    rng, table, disk = random.Random(seed), open_table(tmp_path / "s"), StoppedAt(name)
    known = []

    def keep() -> None:
        shutil.copytree(tmp_path / "s", tmp_path / str(len(known)))
        known.append(copy.deepcopy(state(table)))

    with replaced(disk):
        for number in range(10_000):
            change(table, rng)
            if disk.reached.is_set():
                break
            if table._rewriting is not None:
                disk.reached.wait(0.01)
            assert number < 9_999, "it was never written"
        keep()
        for _ in range(150):
            change(table, rng)
        keep()
        assert disk.own == 0, "a change waited for the disk"
        disk.going.set()
        for _ in range(20):
            change(table, rng)
        table._wait()
        keep()
    for number, expected in enumerate(known):
        assert reopen_after_kill(tmp_path / str(number)) == expected
    table.close(rewrite=True)
    assert reopen_after_kill(tmp_path / "s") == known[-1]
    assert not (tmp_path / "s" / "in_flight.journal.beside").exists()


@pytest.mark.parametrize("kind", ["rename", "open", "fsync", "write"])
def test_failed_rewrite_is_retried_without_loss(tmp_path: Path, kind: str) -> None:
    rng, table = random.Random(7), open_table(tmp_path / "s")
    for nth in range(1, 12):
        with replaced(FaultyCalls(kind, nth, errno.ENOSPC)):
            for _ in range(40):
                try:
                    change(table, rng)
                except in_flight_module.StoreError:
                    assert kind == "write"
            table._wait()
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
        assert reopen_after_kill(tmp_path / "copy") == state(table)
        shutil.rmtree(tmp_path / "copy")
    for _ in range(200):
        change(table, rng)
        table._wait()
    assert sum(each.stat().st_size for each in (tmp_path / "s").iterdir()) < 20_000
    table.close(rewrite=True)
