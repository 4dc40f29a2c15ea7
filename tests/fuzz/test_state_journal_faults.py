"""Fuzz the state journal: nothing acknowledged is lost by a kill, nothing synced by a loss of power.

The real journal has two small tables on a disk that is full or fails for a while. It is killed between operations, at
failpoints and within writes, and the machine loses its power. The model is the list of all acknowledged events, and how
many of them are on disk for sure. What is read after a start is the effect of a beginning of that list, and perhaps of
the one event that was being written. After a loss of power whose damage the start reports, each key may have any of its
values since the last sync.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raymq.storage.errors import StoreError
from raymq.storage.failpoints import NAMES, arm
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.state_journal import StateJournal
from tests.crash.power_loss import Disk
from tests.fuzz.seeds import seeded, try_each
from tests.wrapped_calls import WrappedCalls

STEPS = [name for name in NAMES if name.startswith(("state.", "replace."))]
#: The number of a table and its key, and the value; None: the key is removed.
Change = tuple[tuple[int, str], int | None]
State = dict[tuple[int, str], int]


class Killed(BaseException):
    """Simulate a kill of the process."""


class Refused(Exception):
    """Simulate a refusal between the writing of an event and its application."""


class Numbers(JournaledTable):
    """Numbers by key; events: [key, number, filler] or [key]."""

    NUMBER: ClassVar = 1

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def apply(self, fields: Fields) -> None:
        key, *rest = fields
        if rest:
            self.values[key] = rest[0]
        else:
            self.values.pop(key, None)

    def snapshot(self) -> Iterator[Fields]:
        yield from self.values.copy().items()


class TwiceNumbers(Numbers):
    """Numbers whose events are written twice."""

    NUMBER: ClassVar = 2
    COPIES: ClassVar = 2


class RandomFaults(WrappedCalls):
    """Calls that fail at random for lack of space, and writes that a kill interrupts.

    Cutting a file needs no space.

    Attributes:
        chance: the probability that a call that needs room fails.
        kills: whether the next write is interrupted.
    """

    def __init__(self, real: Disk, random_: random.Random) -> None:
        super().__init__(real)
        self._random = random_
        self.chance = 0.0
        self.kills = False

    def _refuse(self, subject: object) -> None:
        if self._random.random() < self.chance:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(subject))

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._refuse(path)
        return super().open(path, flags)

    def write(self, fd: int, content: bytes | memoryview) -> int:
        part = memoryview(content)[: self._random.randint(1, len(content))]
        if self.kills:
            super().write(fd, part)
            raise Killed
        self._refuse(fd)
        return super().write(fd, part if self._random.random() < self.chance else content)

    def rename(self, source: Path, target: Path) -> None:
        self._refuse(source)
        super().rename(source, target)

    def make_folder(self, path: Path) -> None:
        self._refuse(path)
        super().make_folder(path)


class JournalFuzz:
    """One journal with two tables, its disk, and what it has to remember."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._directory = directory
        self._boots = 0
        #: What was read at the last boot, the events since then, and how many of them are on disk.
        self._base: State = {}
        self._events: list[Change] = []
        self._synced = 0
        #: The events of which a beginning may be in the file, too.
        self._doubtful: list[Change] = []
        self._named = 0
        self._is_healthy = True

    def live(self) -> None:
        self._begin_boot()
        works: list[Callable[[], None]] = [self.write] * 6 + [self.write_durably] * 2 + [self.revoke, self.sync]
        works += [self.compact, self.restart, self.kill, self.kill_within_write, self.kill_at_step, self.lose_power]
        works += [self.fill_disk, self.fail_sync]
        try:
            self._start()
            for _ in range(80):
                self._do(self._random.choice(works))
            self._do(self.restart)
        finally:
            arm("")
            self._stop()
            self._disk.close()

    def _do(self, work: Callable[[], None]) -> None:
        self.log.append(work.__name__)
        with replaced(self._calls):
            try:
                work()
            except Killed:
                self.log.append("killed")
                self._start()
            except StoreError as error:
                self.log.append(type(error).__name__)
            if self._disk.failed:  # also if it was a compaction beside that met it
                self._is_healthy = False
                self._start()
        if self._journal is not None:
            assert self._read() == self._state(len(self._events)), "the tables have what was acknowledged"

    # -- operations ----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write an event."""
        table, change, fields = self._next_event()
        self._doubtful = [change]
        try:
            self._journal_of(table).append(table, fields)
        except StoreError:
            self._doubtful = []
            raise
        self._acknowledge([change])

    def write_durably(self) -> None:
        """Write some events, and wait for the disk; some may be applied if it fails."""
        table = self._random.choice(self._tables)
        changes, events = [], []
        for _ in range(self._random.randint(1, 3)):
            _, change, fields = self._next_event(table)
            changes.append(change)
            events.append(fields)
        self._doubtful = changes
        before = self._journal_of(table).last
        try:
            table.record_durably(*events)
        except StoreError:
            done = self._journal_of(table).last - before
            self._acknowledge(changes[:done])
            raise
        self._acknowledge(changes)
        self._synced = len(self._events)

    def revoke(self) -> None:
        """Write an event that is refused before it is applied."""
        table, change, fields = self._next_event()
        self._doubtful = [change]

        def refuse() -> None:
            raise Refused

        try:
            self._journal_of(table).append(table, fields, refuse)
        except (StoreError, Refused):
            self._doubtful = []

    def sync(self) -> None:
        self._journal_of(self._tables[0]).sync()
        self._synced = len(self._events)

    def compact(self) -> None:
        self._journal_of(self._tables[0]).compact()
        self._synced = len(self._events)

    def restart(self) -> None:
        """Close the journal, with a snapshot or without, and open it."""
        self._heal()
        is_compacted = self._random.random() < 0.5
        self._journal_of(self._tables[0]).close(compact=is_compacted)
        if is_compacted:
            self._synced = len(self._events)
        self._start()

    def kill(self) -> None:
        raise Killed

    def kill_within_write(self) -> None:
        self._calls.kills = True
        self._random.choice((self.write, self.write_durably, self.compact))()

    def kill_at_step(self) -> None:
        def die() -> None:
            raise Killed

        arm(f"{self._random.choice(STEPS)}:{self._random.randint(1, 2)}", die)
        for work in self._random.choices((self.write, self.write_durably, self.compact), k=4):
            work()

    def fill_disk(self) -> None:
        self._calls.chance = self._random.choice((0.0, 0.05, 0.4))

    def fail_sync(self) -> None:
        """Let one of the next syncs fail."""
        self._disk._fail_at = self._disk.syncs + self._random.randint(1, 4)
        self._random.choice((self.write_durably, self.compact))()

    def lose_power(self) -> None:
        """Let the machine lose its power, and boot it."""
        self._stop()
        before, disk = self._disk, self._disk
        disk.after_power_loss(self._directory / str(self._boots + 1), self._random, self._random.random())
        before.close()
        self._begin_boot()
        with replaced(self._calls):
            self._start(after_power_loss=True)

    # -- starts --------------------------------------------------------------------------------------------------

    def _begin_boot(self) -> None:
        self._boots += 1
        root = self._directory / str(self._boots)
        root.mkdir(exist_ok=True)
        self._disk = Disk(root)
        self._disk.remember_all()
        self._calls = RandomFaults(self._disk, self._random)
        self._is_healthy = True

    def _stop(self) -> None:
        if self._journal is not None:
            self._journal._close_file()
        self._journal = None

    _journal: StateJournal | None = None

    def _start(self, *, after_power_loss: bool = False) -> None:
        """Open the journal as the process that comes after a kill, and compare it with the model."""
        self._stop()
        self._heal()
        arm("")
        folder = self._disk.root / "state"
        reader = [Numbers(), TwiceNumbers()]
        StateJournal(folder, reader, writable=False)
        self._tables = [Numbers(), TwiceNumbers()]
        with replaced(self._calls):
            self._journal = StateJournal(folder, self._tables, writable=True)
            self._accept(self._read(), self._journal, after_power_loss=after_power_loss)
            assert [each.values for each in reader] == [each.values for each in self._tables]
            self._journal.compact_after_damage()
            if not self._is_healthy:
                self._journal.compact()
                self._synced = len(self._events)
                self._is_healthy = True

    def _heal(self) -> None:
        self._calls.chance = 0.0
        self._calls.kills = False
        self._disk._fail_at = 0
        self._disk.failed = False

    def _accept(self, found: State, journal: StateJournal, *, after_power_loss: bool) -> None:
        """Check what a start has found, and continue with it."""
        least = self._synced if after_power_loss else len(self._events)
        written = [*self._events, *self._doubtful]
        possible = [count for count in range(least, len(written) + 1) if self._state_of(written[:count]) == found]
        if not possible:
            assert after_power_loss, f"{found} after {self._events}, perhaps {self._doubtful}"
            assert journal.loaded.lost or journal.loaded.damage, "it is no beginning of what was written"
            self._check_each_key(found, written)
        if after_power_loss:
            self._base, self._events, self._synced = found, [], 0
        else:
            self._events = written[: possible[-1]]
        self._doubtful = []

    def _check_each_key(self, found: State, events: list[Change]) -> None:
        before = self._state(self._synced)
        for key in before.keys() | found.keys():
            values = {before.get(key), *(value for each, value in events[self._synced :] if each == key)}
            assert found.get(key) in values, f"{key} has a value from before the last sync"

    # -- the model -----------------------------------------------------------------------------------------------

    def _journal_of(self, table: Numbers) -> StateJournal:
        assert isinstance(table.journal, StateJournal)
        return table.journal

    def _next_event(self, table: Numbers | None = None) -> tuple[Numbers, Change, list[Any]]:
        table = table or self._random.choice(self._tables)
        key = self._random.choice("abcde")
        self._named += 1
        if self._random.random() < 0.2:
            return table, ((table.NUMBER, key), None), [key]
        filler = bytes(self._random.choice((0, 3, 100, 700)))
        return table, ((table.NUMBER, key), self._named), [key, self._named, filler]

    def _acknowledge(self, changes: list[Change]) -> None:
        self._events += changes
        self._doubtful = []

    def _read(self) -> State:
        return {(table.NUMBER, key): value for table in self._tables for key, value in table.values.items()}

    def _state(self, count: int) -> State:
        return self._state_of(self._events[:count])

    def _state_of(self, events: list[Change]) -> State:
        state = dict(self._base)
        for key, value in events:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state


@pytest.fixture(autouse=True)
def compact_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact short journals, in the thread that writes, so that a seed always does the same."""
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 2_000)
    monkeypatch.setattr(StateJournal, "_compact_beside", StateJournal._try_compact)


@seeded(few=20, many=2_000)
def test_journal_survives_kills_and_losses_of_power(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, JournalFuzz)
