"""The files of the state journal, and how a start reads them.

    <store>/raymq/state/journal-<20 digits>     events; the name is the number of the first one
    <store>/raymq/state/snapshot-<20 digits>    the effect of all events before that number, as events

Both are frames (`journal_frames`) of `[number, log_end, table, value, ...]`. In a journal `number` rises by one from
event to event; in a snapshot it is the position in the file. The first frame of a snapshot is of table 0 and holds the
snapshot's own number; the last one is of table 0 without a value, so a snapshot that lacks its end is recognized. An
event that is written twice has the same number twice.

The newest whole snapshot counts, with the journals from its number on. The one before it, and the journals behind that
one, are kept, and all journals as long as there is one snapshot only: one damaged snapshot costs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import StoreBusy
from raymq.storage.files import fileutil, json_file
from raymq.storage.journal.journal_frames import decode_frames, encode_frame
from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The table of a snapshot's first and last frame.
SNAPSHOT_TABLE: Final = 0
_NAME: Final = re.compile(r"(journal|snapshot)-(\d{20})")
#: number, log end, table
_HEAD_FIELDS: Final = 3
#: How often a reader without the lock looks again, because the files were replaced while it read them.
_TRIES: Final = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SetAsideEvent:
    """An event that is whole but has no meaning for its table.

    Attributes:
        number: its number; a position in the file if it was in a snapshot.
        table: the number of the table.
        event: its values.
        reason: why it was not applied.
    """

    number: int
    table: int
    event: str
    reason: str

    def __str__(self) -> str:
        return f"event {self.number} of table {self.table} ({self.event[:200]}) is not applied: {self.reason[:200]}"


@dataclass(slots=True)
class LoadedState:
    """What a start has read.

    Attributes:
        last: the number of the newest event; 0 without one.
        snapshot: the number of the (oldest) snapshot that was used; 0 without one.
        damaged_snapshots: the numbers of the newer snapshots, or of all, which are not whole.
        lost: how many events are missing, if events behind them are there.
        is_salvaged: events of the beginning or end are missing, because no file that has them is whole.
        damage: path, position and length of each part of a file that has changed.
        set_aside: the events that no table could apply.
        journals: the journals' files by their first numbers, ascending.
        end: the length in bytes of the newest journal up to the end of its last event.
    """

    last: int = 0
    snapshot: int = 0
    damaged_snapshots: list[int] = field(default_factory=list)
    lost: int = 0
    is_salvaged: bool = False
    damage: list[tuple[Path, int, int]] = field(default_factory=list)
    set_aside: list[SetAsideEvent] = field(default_factory=list)
    journals: dict[int, Path] = field(default_factory=dict)
    end: int = 0

    def lacks_synced(self, table: int, *, memory_lost: bool) -> bool:
        """Return True if events of a table may be missing that were on disk.

        Args:
            memory_lost: a loss of power may have taken events that were not on disk; they do not count.
        """
        is_lost = self.lost > 0 and not memory_lost
        return is_lost or self.is_salvaged or any(each.table == table for each in self.set_aside)


def journal_path(folder: Path, first: int) -> Path:
    """Return the path of the journal that begins with event number `first`."""
    return folder / f"journal-{first:020d}"


def snapshot_path(folder: Path, number: int) -> Path:
    """Return the path of the snapshot of all events before `number`."""
    return folder / f"snapshot-{number:020d}"


def next_folder(folder: Path) -> Path:
    """Return the folder of a copy that will replace the journal in `folder`."""
    return folder.with_name(f"{folder.name}.next")


def former_folder(folder: Path) -> Path:
    """Return the folder of the journal that a copy in `folder` replaces."""
    return folder.with_name(f"{folder.name}.former")


def is_journal_file(name: str) -> bool:
    """Return True if a file of that name belongs to a journal."""
    return _NAME.fullmatch(name) is not None


def files_in(folder: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """Return the journals and the snapshots by their numbers, ascending.

    Raise StoreBusy or StoreFailed if the folder cannot be read.
    """
    found: dict[str, dict[int, Path]] = {"journal": {}, "snapshot": {}}
    for path in fileutil.paths_in(folder):
        if name := _NAME.fullmatch(path.name):
            found[name[1]][int(name[2])] = path
    return found["journal"], found["snapshot"]


def unfinished_files(folder: Path) -> list[Path]:
    """Return the snapshots whose writing was interrupted; raise as `files_in`."""
    return [path for path in fileutil.paths_in(folder) if path.suffix == ".tmp" and _NAME.fullmatch(path.stem)]


def snapshot_frames(number: int, log_end: int, tables: Mapping[int, JournaledTable]) -> Iterator[bytes]:
    """Return the frames of a snapshot; the tables may change meanwhile."""
    yield encode_frame((0, log_end, SNAPSHOT_TABLE, number)) * 2
    position = 0
    for table in tables.values():
        for fields in table.snapshot():
            position += 1
            yield encode_frame((position, log_end, table.NUMBER, *fields)) * table.COPIES
    yield encode_frame((position + 1, log_end, SNAPSHOT_TABLE)) * 2


def load_state(folder: Path, tables: Mapping[int, JournaledTable], *, is_locked: bool) -> LoadedState:
    """Apply the newest snapshot and the events behind it to empty tables.

    Args:
        is_locked: no other process changes the files; else they are read anew if one disappears, or if a copy replaces
            them all.

    Raises:
        StoreBusy, StoreFailed: a file cannot be read now.
    """
    for _ in range(1 if is_locked else _TRIES):
        source = (folder, None) if is_locked else _readable(folder)
        journals, snapshots = files_in(source[0])
        with contextlib.suppress(FileNotFoundError):
            contents = {path: fileutil.read_whole(path) for path in (*journals.values(), *snapshots.values())}
            if is_locked or source == _readable(folder):
                return _Loading(tables, contents).load(journals, snapshots)
    raise StoreBusy(f"the files of {folder} change too quickly to be read")


def _readable(folder: Path) -> tuple[Path, int | None]:
    """Return the folder that has the journal now, and its inode."""
    for path in (folder, next_folder(folder)) if former_folder(folder).exists() else (folder,):
        with contextlib.suppress(FileNotFoundError):
            return path, path.stat().st_ino
    return folder, None


def apply_event(
    table: JournaledTable | None, number: int, table_number: int, fields: Fields, *, is_lossy: bool = False
) -> SetAsideEvent | None:
    """Apply an event to its table; log and return it if it cannot.

    Args:
        is_lossy: some events before it are lost.
    """
    try:
        if table is None:
            raise ValueError("no such table")
        (table.apply_after_loss if is_lossy else table.apply)(fields)
    except json_file.DECODE_ERRORS as error:
        aside = SetAsideEvent(number, table_number, repr(fields), repr(error))
        _log.error("%s", aside)
        return aside
    return None


@dataclass(slots=True)
class _Events:
    """The events of one file, each once; `lost` events before the last are missing."""

    events: list[tuple[int, int, Fields]]
    lost: int
    end: int
    damage: list[tuple[Path, int, int]]


class _Loading:
    def __init__(self, tables: Mapping[int, JournaledTable], contents: Mapping[Path, bytes]) -> None:
        self._tables = tables
        self._contents = contents
        self._loaded = LoadedState()

    def load(self, journals: Mapping[int, Path], snapshots: Mapping[int, Path]) -> LoadedState:
        loaded = self._loaded
        loaded.journals = dict(journals)
        begin = self._apply_snapshots(snapshots, is_complete=1 in journals and 1 not in snapshots)
        loaded.snapshot = begin
        loaded.last = max(0, begin - 1)
        for first, path in journals.items():
            found = self._read(path, first - 1)
            loaded.end = found.end
            if first < begin:
                continue
            loaded.damage += found.damage
            for number, table, fields in found.events:
                if number > loaded.last + 1:
                    loaded.lost += number - loaded.last - 1
                    _log.error("%s: %d events before number %d are lost", path, number - loaded.last - 1, number)
                if number > loaded.last:
                    self._apply(number, table, fields)
                    loaded.last = number
        known = max(snapshots, default=0) - 1
        if loaded.last < known:
            _log.error("%d events before a snapshot that is damaged are lost", known - loaded.last)
            loaded.lost += known - loaded.last
            loaded.last, loaded.is_salvaged = known, True
        return loaded

    def _apply_snapshots(self, snapshots: Mapping[int, Path], *, is_complete: bool) -> int:
        """Apply the newest whole snapshot, else what can be read of all.

        Args:
            is_complete: the journals have all events since the store was made.

        Returns:
            the number of the first event behind what was applied.
        """
        loaded = self._loaded
        read = {number: self._read(path, -1) for number, path in snapshots.items()}
        for number in sorted(read, reverse=True):
            if _is_whole(read[number], number):
                loaded.damage += read[number].damage
                self._apply_all(read[number])
                return number
            _log.error("%s is damaged; older files are used", snapshots[number])
            loaded.damaged_snapshots.append(number)
            loaded.damage += read[number].damage or [(snapshots[number], 0, read[number].end)]
        if not read or is_complete:
            return 0
        _log.error("no snapshot in %s is whole: what can be read of them is used", snapshots[max(read)].parent)
        loaded.lost += max(1, read[max(read)].lost)
        loaded.is_salvaged = True
        for number in sorted(read):
            self._apply_all(read[number])
        return min(read)

    def _apply_all(self, found: _Events) -> None:
        for number, table, fields in found.events:
            if table != SNAPSHOT_TABLE:
                self._apply(number, table, fields)

    def _apply(self, number: int, table_number: int, fields: Fields) -> None:
        is_lossy = bool(self._loaded.lost)
        aside = apply_event(self._tables.get(table_number), number, table_number, fields, is_lossy=is_lossy)
        if aside is not None:
            self._loaded.set_aside.append(aside)

    def _read(self, path: Path, before: int) -> _Events:
        """Return the events of a file; `before` is the number before its first one."""
        found = decode_frames(self._contents[path])
        events: list[tuple[int, int, Fields]] = []
        lost, last = 0, before
        for entry in (*found.entries, *found.behind):
            if not _is_event(entry):
                _log.error("%s: %.200r is not an event", path, entry)
                continue
            number, _, table, *fields = entry
            if number > last:
                lost += number - last - 1
                events.append((number, table, fields))
                last = number
        for begin, end in found.damage:
            _log.error("%s: %d bytes at %d are not what was written", path, end - begin, begin)
        damage = [(path, begin, end - begin) for begin, end in found.damage]
        return _Events(events, lost, found.length, damage)


def _is_event(entry: tuple[Any, ...]) -> bool:
    return len(entry) >= _HEAD_FIELDS and all(type(each) is int and each >= 0 for each in entry[:_HEAD_FIELDS])


def _is_whole(found: _Events, number: int) -> bool:
    """Return True if a snapshot has all frames from its first to its last."""
    if found.lost or len(found.events) <= 1:
        return False
    first, last = found.events[0], found.events[-1]
    return first[1] == last[1] == SNAPSHOT_TABLE and [*first[2]] == [number] and not last[2]
