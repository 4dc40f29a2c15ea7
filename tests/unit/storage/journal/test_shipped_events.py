"""Test a replica's state journal: events of its master, and copies of its master's journal."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgpack
import pytest

from raymq.storage.errors import InvalidInput, StateMismatch, StoreError, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import journal_copy
from raymq.storage.journal.journal_copy import FilePart, IncomingJournal, decode_part, finish_exchange
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.journal.state_journal import StateJournal
from tests.faulty_calls import FaultyCalls


class Values(JournaledTable):
    """Values by name; an event has both."""

    NUMBER: ClassVar = 3

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def apply(self, fields: Fields) -> None:
        name, value = fields
        self.values[name] = value

    def snapshot(self) -> Iterator[Fields]:
        yield from self.values.copy().items()


class Decisions(Values):
    """Values whose events are written twice."""

    NUMBER: ClassVar = 5
    COPIES: ClassVar = 2


class Broker:
    """The journal of one broker, with two tables."""

    def __init__(self, folder: Path) -> None:
        self.values, self.decisions = Values(), Decisions()
        self.journal = StateJournal(folder, [self.values, self.decisions], writable=True)
        self.journal.backlog = ReplicationBacklog(self.journal.last)

    @property
    def content(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.values.values, self.decisions.values

    def change(self, number: int) -> None:
        (self.decisions if number % 3 == 0 else self.values).record(f"k{number % 7}", number)

    def follow(self, master: Broker) -> None:
        assert master.journal.backlog is not None
        while events := master.journal.backlog.after(self.journal.last):
            self.journal.append_shipped(events)


def event(number: int, *fields: Any, log_end: int = 0, head: Fields | None = None) -> JournalEvent:
    return JournalEvent(number, log_end, msgpack.packb([*(head or (number, log_end, 3)), *fields]))


def copy_to(master: StateJournal, incoming: IncomingJournal) -> int:
    copy = master.copy()
    for part in copy.parts():
        incoming.write(decode_part(part.encode()))
    copy.close()
    incoming.sync()
    return copy.sequence


def test_replica_has_the_events_with_their_numbers(tmp_path: Path) -> None:
    master, replica = Broker(tmp_path / "master"), Broker(tmp_path / "replica")
    for number in range(40):
        master.change(number)
        if number % 5 == 0:
            replica.follow(master)
    replica.follow(master)
    assert replica.content == master.content
    files = [
        (folder / "journal-00000000000000000001").read_bytes() for folder in (tmp_path / "master", tmp_path / "replica")
    ]
    assert files[0] == files[1], "also the second copies of decisions"
    again = Broker(tmp_path / "replica")
    assert (again.content, again.journal.last) == (master.content, 40)
    assert again.journal.newest_of(again.values) == 0


def test_promoted_replica_ships_to_others(tmp_path: Path) -> None:
    master, first, second = (Broker(tmp_path / name) for name in "abc")
    for number in range(10):
        master.change(number)
    first.follow(master)
    first.change(10)
    second.follow(first)
    assert second.content == first.content
    assert second.journal.last == 11


@pytest.mark.parametrize(
    "forged",
    [
        event(2, "a", 1),
        event(1, "a", 1, head=(2, 0, 3)),
        event(1, "a", 1, head=(1, 7, 3)),
        event(1, "a", 1, head=(1, 0, 0)),
        event(1, "a", 1, head=(1, 0, "x")),
        JournalEvent(1, 0, b""),
        JournalEvent(1, 0, b"\xc1"),
        JournalEvent(1, 0, msgpack.packb(7)),
        JournalEvent(1, 0, msgpack.packb([1, 0])),
        event(1, "a", b"x" * (16 << 20)),
    ],
)
def test_forged_event_changes_nothing(tmp_path: Path, forged: JournalEvent) -> None:
    replica = Broker(tmp_path)
    with pytest.raises((InvalidInput, StateMismatch)):
        replica.journal.append_shipped([forged])
    sound = event(1, "b", 2)
    with pytest.raises((InvalidInput, StateMismatch)):
        replica.journal.append_shipped([sound, forged._replace(sequence=3)])
    assert replica.journal.last == 0
    assert replica.content == ({}, {})
    replica.journal.append_shipped([sound])
    assert Broker(tmp_path).values.values == {"b": 2}


def test_shipped_event_without_meaning_is_counted(tmp_path: Path) -> None:
    """A master with another version may have a table more; the numbers have to go on."""
    replica = Broker(tmp_path)
    replica.journal.append_shipped([event(1, "a"), event(2, "b", 2), event(3, 1, head=(3, 0, 99))])
    assert (replica.journal.last, replica.values.values) == (3, {"b": 2})
    again = Broker(tmp_path)
    assert (again.journal.last, again.values.values) == (3, {"b": 2})
    assert len(again.journal.loaded.set_aside) == 2
    assert not again.journal.is_lossy


def test_refused_write_applies_none_of_the_events(tmp_path: Path) -> None:
    replica = Broker(tmp_path)
    events = [event(number, f"k{number}", number) for number in (1, 2, 3)]
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)), pytest.raises(StoreFull):
        replica.journal.append_shipped(events)
    assert (replica.journal.last, replica.values.values) == (0, {})
    replica.journal.append_shipped(events)
    assert Broker(tmp_path).values.values == replica.values.values == {"k1": 1, "k2": 2, "k3": 3}


def test_failed_event_is_never_in_the_backlog(tmp_path: Path) -> None:
    master = Broker(tmp_path)

    def fail() -> None:
        raise StoreError("not moved")

    with pytest.raises(StoreError, match="not moved"):
        master.journal.append(master.values, ("a", 1), before_apply=fail)
    master.values.record("b", 2)
    assert master.journal.backlog is not None
    assert [each.decode()[1] for each in master.journal.backlog.after(0)] == [["b", 2]]


def test_appends_notify_after_the_event_is_in_the_backlog(tmp_path: Path) -> None:
    master = Broker(tmp_path)
    seen: list[int] = []
    backlog = master.journal.backlog
    assert backlog is not None
    master.journal.on_append = lambda: seen.append(backlog.last)
    for number in range(3):
        master.change(number)
    assert seen == [1, 2, 3]


def test_torn_shipped_events_recover_to_a_prefix(tmp_path: Path) -> None:
    master, path = Broker(tmp_path / "master"), tmp_path / "replica"
    contents = []
    for number in range(6):
        master.change(number)
        contents.append(({**master.values.values}, {**master.decisions.values}))
    replica = Broker(path)
    replica.follow(master)
    file = path / "journal-00000000000000000001"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        again = Broker(path)
        assert not again.journal.is_lossy
        if again.journal.last:
            assert again.content == contents[again.journal.last - 1]
        again.follow(master)
        assert again.content == master.content
        again.journal.close(compact=False)


@pytest.mark.parametrize("compacts", [False, True])
def test_copy_is_exact_at_its_moment(tmp_path: Path, compacts: bool) -> None:
    master = Broker(tmp_path / "master")
    for number in range(20):
        master.change(number)
        if number == 12:
            master.journal.compact()
    copy, content = master.journal.copy(), ({**master.values.values}, {**master.decisions.values})
    for number in range(20, 40):
        master.change(number)
        if compacts and number % 5 == 0:
            master.journal.compact()  # removes files that the copy has
    incoming = IncomingJournal(tmp_path / "replica")
    parts = list(copy.parts())
    assert sum(len(part.content) for part in parts) == copy.total_bytes
    for part in parts:
        incoming.write(part)
    copy.close()
    copy.close()
    incoming.sync()
    incoming.install()
    replica = Broker(tmp_path / "replica")
    assert (replica.content, replica.journal.last) == (content, copy.sequence)
    replica.follow(master)
    assert replica.content == master.content


def test_copies_beside_appends_and_compactions_are_prefixes(tmp_path: Path) -> None:
    master, is_over = Broker(tmp_path / "master"), threading.Event()

    def change() -> None:
        number = 0
        while not is_over.is_set():
            master.values.record("n", number)
            number += 1
            if number % 97 == 0:
                master.journal.compact()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for number in range(12):
            is_over.wait(random.Random(number).random() / 100)
            incoming = IncomingJournal(tmp_path / str(number))
            sequence = copy_to(master.journal, incoming)
            incoming.install()
            found = Broker(tmp_path / str(number))
            assert found.journal.last == sequence
            assert found.values.values.get("n", -1) == sequence - 1
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "part",
    [
        b"\xc1",
        msgpack.packb(7),
        *(
            msgpack.packb(each)
            for each in (
                ("../journal-00000000000000000001", 0, b"x"),
                ("journal-1", 0, b"x"),
                ("state.json", 0, b"x"),
                (7, 0, b"x"),
                ("journal-00000000000000000001", -1, b"x"),
                ("journal-00000000000000000001", True, b"x"),
                ("journal-00000000000000000001", 0, "x"),
                ("journal-00000000000000000001", 0),
            )
        ),
    ],
)
def test_forged_part_is_refused(part: bytes) -> None:
    with pytest.raises(StateMismatch):
        decode_part(part)


def test_parts_must_follow_each_other(tmp_path: Path) -> None:
    incoming = IncomingJournal(tmp_path / "state")
    name = "journal-00000000000000000001"
    incoming.write(FilePart(name, 0, b"abc"))
    for wrong in (0, 2, 4):
        with pytest.raises(StateMismatch):
            incoming.write(FilePart(name, wrong, b"d"))
    incoming.write(FilePart(name, 3, b"d"))


@pytest.mark.parametrize("step", ["before_exchange", "within_exchange", "after_exchange"])
def test_interrupted_exchange_is_completed_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = tmp_path / "state"
    master, replica = Broker(tmp_path / "master"), Broker(folder)
    master.values.record("of", "master")
    replica.values.record("of", "replica")
    replica.journal.close(compact=False)
    incoming = IncomingJournal(folder)
    copy_to(master.journal, incoming)

    def stop(name: str) -> None:
        if name == f"copy.{step}":
            raise KeyboardInterrupt

    monkeypatch.setattr(journal_copy, "failpoint", stop)
    with pytest.raises(KeyboardInterrupt):
        incoming.install()
    read = Values()
    StateJournal(folder, [read, Decisions()], writable=False)
    finish_exchange(folder)
    found = Broker(folder).values.values
    assert found == read.values == {"of": "replica" if step == "before_exchange" else "master"}
    assert not (tmp_path / "state.former").exists()


def test_renumbered_journal_shares_no_number(tmp_path: Path) -> None:
    first, second = Broker(tmp_path / "a"), Broker(tmp_path / "b")
    for each in (first, second):
        each.change(1)
        each.journal.renumber()
    assert first.journal.last != second.journal.last
    assert min(first.journal.last, second.journal.last) > 1 << 60
    first.change(2)
    again = Broker(tmp_path / "a")
    assert (again.content, again.journal.last) == (first.content, first.journal.last)
    assert not again.journal.is_lossy
