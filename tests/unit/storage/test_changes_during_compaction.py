"""Test that tables change while a snapshot is written, and that no kill takes a change back (faults 13, 13.28).

The journals of offsets and of in-flight messages were once rewritten, with two fsyncs, on a broker's event loop.
"""

from __future__ import annotations

import copy
import errno
import os
import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.journal import state_journal
from raymq.storage.journal.journaled_table import Fields
from raymq.storage.journal.recovery_bounds import UNBOUNDED
from raymq.storage.tables import in_flight_messages
from raymq.storage.tables.consumer_offsets import ConsumerOffsets
from raymq.storage.tables.delay_offsets import DelayOffsets
from raymq.storage.tables.deleted_topics import DeletedTopics
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from tests.faulty_calls import FaultyCalls
from tests.polling import poll_until
from tests.state_journals import open_tables

QUEUES = [("g", "t", 0), ("g", "t", 1), ("h", "t", 0)]


class StoppedAt(FileCalls):
    """Block other threads' calls on a file whose name has `name` until `going`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reached = threading.Event()
        self.going = threading.Event()
        #: The calls of the main thread that wait for the disk, or change names.
        self.own = 0

    def fsync(self, fd: int) -> None:
        self._at(os.readlink(f"/proc/self/fd/{fd}"))

    def fdatasync(self, fd: int) -> None:
        self._at(os.readlink(f"/proc/self/fd/{fd}"))

    def rename(self, source: Path, target: Path) -> None:
        self._at(f"{source} is renamed")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._at(f"{path} is removed")
        super().unlink(path)

    def _at(self, what: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.own += 1
        elif self._name in what.rpartition("/")[2]:
            self.reached.set()
            assert self.going.wait(30)


class Opened:
    """The tables whose journals were once rewritten, and random changes of them."""

    def __init__(self, directory: Path) -> None:
        self.offsets, self.delays, self.in_flight = ConsumerOffsets(), DelayOffsets(), InFlightTable()
        self.deleted = DeletedTopics([self.offsets, self.delays, self.in_flight])
        self.journal = open_tables(directory, self.deleted, self.offsets, self.delays, self.in_flight)
        self.journal.clamp(replace(UNBOUNDED, deleted_topics=dict(self.deleted.places)))
        self._number = 0

    def change(self, rng: random.Random) -> None:
        """Change one of the tables."""
        self._number += 1
        number, group = self._number, f"g{rng.randrange(7)}"
        work = rng.randrange(7)
        if work == 0:
            self.offsets.commit("g", "t", number % 5, number)
        elif work == 1:
            self.offsets.reset(group, "t", 0, number)
        elif work == 2:
            self.offsets.delete(group, "t")
        elif work == 3:
            self.delays.commit(1 + number % 3, number, 10 * number)
        elif work == 4 and rng.random() < 0.2:
            self.delete("t", number)
        else:
            self._deliver_or_end(rng)

    def delete(self, topic: str, log_end: int) -> None:
        """Delete a topic."""
        self.journal.append(self.deleted, self.deleted.deletion(topic, log_end))

    def _deliver_or_end(self, rng: random.Random) -> None:
        table, queue = self.in_flight, rng.choice(QUEUES)
        known = table.queues.get(queue)
        if known is None:
            at = rng.randrange(50)  # a group may be reset
            table.deliver(queue, at + 3, {at + n: InFlightMessage(rng.randrange(1000), 2, 0, 16) for n in range(3)})
        elif rng.random() < 0.4:
            end = known.next_offset + rng.randrange(1, 4)
            table.deliver(queue, end, {n: InFlightMessage(3, 4, 0, 16) for n in range(known.next_offset, end)})
        elif rng.random() < 0.2:
            again = rng.choice(list(known.deliveries))
            table.deliver(queue, known.next_offset, {again: InFlightMessage(rng.randrange(1000), 5, 1, 16)})
        elif rng.random() < 0.1:
            table.forget(queue)
        else:
            table.acknowledge(queue, rng.sample(list(known.deliveries), rng.randrange(1, len(known.deliveries) + 1)))

    def state(self) -> object:
        """Return the content of all tables."""
        queues = {
            queue: (each.next_offset, list(each.deliveries.items())) for queue, each in self.in_flight.queues.items()
        }
        levels = {level: self.delays.get(level) for level in range(1, 4)}, self.delays.log_end
        return self.offsets.offsets, self.offsets.resets, levels, queues, self.deleted.places

    def wait(self) -> None:
        """Wait until no snapshot is being written."""
        compaction = self.journal._compaction
        poll_until(lambda: compaction is None or not compaction.is_alive(), 30)


@pytest.fixture(autouse=True)
def small_compactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 400)
    monkeypatch.setattr(in_flight_messages, "_DELIVERIES_AT_ONCE", 3)


def reopen_after_kill(directory: Path) -> object:
    """Return what repeated openings find in a copy taken while the process ran."""
    found = []
    for compacts in (False, True, False):
        opened = Opened(directory)
        found.append(copy.deepcopy(opened.state()))
        opened.journal.close(compact=compacts)
    assert found[0] == found[1] == found[2]
    return found[0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["journal-", "snapshot-", "renamed", "removed"])
def test_changes_continue_during_a_compaction(tmp_path: Path, name: str, seed: int) -> None:
    rng, opened, disk = random.Random(seed), Opened(tmp_path / "s"), StoppedAt(name)
    known: list[object] = []

    def keep() -> None:
        shutil.copytree(tmp_path / "s", tmp_path / str(len(known)))
        known.append(copy.deepcopy(opened.state()))

    with replaced(disk):
        for number in range(10_000):
            opened.change(rng)
            if disk.reached.is_set():
                break
            if opened.journal._compaction is not None:
                disk.reached.wait(0.01)
            assert number < 9_999, "it was never written"
        keep()
        for _ in range(150):
            opened.change(rng)
        keep()
        assert disk.own == 0, "a change waited for the disk"
        disk.going.set()
        for _ in range(20):
            opened.change(rng)
        opened.wait()
        keep()
    for number, expected in enumerate(known):
        assert reopen_after_kill(tmp_path / str(number)) == expected
    opened.journal.close(compact=True)
    assert reopen_after_kill(tmp_path / "s") == known[-1]


def test_changes_do_not_wait_for_a_journal_sync(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "s")
    opened.offsets.commit("g", "t", 0, 1)
    disk = StoppedAt("journal-")
    with replaced(disk):
        checkpoint = threading.Thread(target=opened.journal.sync)
        checkpoint.start()
        assert disk.reached.wait(30)
        for number in range(2, 200):
            opened.offsets.commit("g", "t", 0, number)
        assert checkpoint.is_alive()
        disk.going.set()
        checkpoint.join()
    opened.journal.close(compact=True)
    assert Opened(tmp_path / "s").offsets.offsets == {"g": {"t": {0: 199}}}


@pytest.mark.parametrize("kind", ["rename", "open", "unlink", "write"])
def test_failed_compaction_is_retried_without_loss(tmp_path: Path, kind: str) -> None:
    rng, opened = random.Random(7), Opened(tmp_path / "s")
    for nth in range(1, 12):
        with replaced(FaultyCalls(kind, nth, errno.ENOSPC, lasting=nth % 3 == 0)):
            for _ in range(40):
                try:
                    opened.change(rng)
                except StoreError:
                    assert kind == "write"
            opened.wait()
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
        assert reopen_after_kill(tmp_path / "copy") == opened.state()
        shutil.rmtree(tmp_path / "copy")
    for _ in range(200):
        opened.change(rng)
        opened.wait()
    assert sum(each.stat().st_size for each in (tmp_path / "s" / "raymq" / "state").iterdir()) < 20_000
    opened.journal.close(compact=True)


def test_compaction_interval_grows_with_the_tables(tmp_path: Path) -> None:
    # Each snapshot has all tables: the next one is due when the journal has grown by twice its size.
    opened = Opened(tmp_path / "s")
    for number in range(300):
        opened.offsets.commit(f"group{number}", "t", 0, 1)
    opened.wait()
    opened.journal.compact()
    snapshots = sorted((tmp_path / "s" / "raymq" / "state").glob("snapshot-*"))
    saved = snapshots[-1].stat().st_size
    assert saved > 10 * state_journal._COMPACT_BYTES
    grown = number = 0
    compaction = opened.journal._compaction
    while opened.journal._compaction is compaction:
        grown, number = opened.journal._length, number + 1
        opened.offsets.commit("group0", "t", 0, 10_000 + number)
    assert grown > 1.9 * saved
    opened.journal.close(compact=True)


@pytest.mark.parametrize("moment", ["before the table is read", "after the table was read"])
def test_topic_deleted_during_a_compaction_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    # The snapshot may have the deletion or the topic's offsets: the events behind it decide.
    opened = Opened(tmp_path / "s")
    opened.offsets.commit("g", "t", 0, 15)
    opened.in_flight.deliver(("g", "t", 0), 16, {15: InFlightMessage(1, 2, 0, 16)})
    reached, go_on = threading.Event(), threading.Event()
    is_before, snapshot = moment.startswith("before"), ConsumerOffsets.snapshot

    def halted(table: ConsumerOffsets) -> Iterator[Fields]:
        events = None if is_before else list(snapshot(table))
        reached.set()
        assert go_on.wait(30)
        yield from snapshot(table) if events is None else events

    monkeypatch.setattr(ConsumerOffsets, "snapshot", halted)
    compaction = threading.Thread(target=opened.journal.compact)
    compaction.start()
    assert reached.wait(30)
    opened.delete("t", 100)
    opened.offsets.commit("g", "t", 1, 3)  # in the new topic of that name
    go_on.set()
    compaction.join()
    monkeypatch.undo()
    again = Opened(tmp_path / "s")
    assert again.offsets.offsets == {"g": {"t": {1: 3}}}
    assert again.in_flight.queues == {}
    assert again.deleted.places == {"t": 100}
