"""Read the topic deletions and delay levels with which a replica's queues have to agree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from raymq.storage.errors import StoreBusy
from raymq.storage.files import fileutil, json_file
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.journal import journal_files
from raymq.storage.journal.journal_frames import decode_frames
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.log.checkpoint import CheckpointState
from raymq.storage.state.state_files import RAYMQ_FOLDER
from raymq.storage.tables.delay_level_history import DelayLevelHistory
from raymq.storage.tables.deleted_topics import DeletedTopics

#: number, log end, table
_HEAD_FIELDS = 3


def folder_of(directory: Path) -> Path:
    """Return the folder of the state journal."""
    return directory / RAYMQ_FOLDER / "state"


def sync(directory: Path) -> None:
    """Bring the journal to disk, before the queues' checkpoint contains its deletions."""
    folder = folder_of(directory)
    if folder.is_dir():
        for path in fileutil.paths_in(folder):
            sync_path(path)
        fileutil.sync_directory(folder)


def read_deleted_topics(directory: Path) -> dict[str, int]:
    """Return the log's end at the last deletion of each topic in the state journal.

    Raise StoreBusy or StoreFailed if the journal cannot be read now.
    """
    tail = JournalTail(directory)
    tail.read()
    return dict(tail.deleted_topics.places)


def read_all_deletions(directory: Path) -> list[tuple[str, int]]:
    """Return all deletions in the state journal, also earlier ones of the same topic.

    Raise as `read_deleted_topics`.
    """
    table = _AllDeletions()
    journal_files.load_state(folder_of(directory), {table.NUMBER: table}, is_locked=False, only=True)
    return table.deletions


class _AllDeletions(DeletedTopics):
    """Collects the deletions in the order of their events."""

    def __init__(self) -> None:
        super().__init__([])
        self.deletions: list[tuple[str, int]] = []

    def apply(self, fields: Fields) -> None:
        super().apply(fields)
        topic = fields[1]
        if topic in self.places:
            self.deletions.append((topic, self.places[topic]))


class JournalTail:
    """Read two tables of a growing journal, each time only what was added.

    Belongs to one thread.

    Attributes:
        deleted_topics, delay_levels: the tables as they were at the last `read`.
    """

    def __init__(self, directory: Path) -> None:
        self._folder = folder_of(directory)
        self.deleted_topics, self.delay_levels = DeletedTopics([]), DelayLevelHistory()
        #: The newest journal that was read: its number and inode, how far, and its last frame.
        self._read: tuple[int, int] | None = None
        self._at = 0
        self._last = b""

    def read(self) -> None:
        """Bring the tables up to date; raise StoreBusy or StoreFailed if the journal cannot be read now."""
        journals, _ = journal_files.files_in(self._folder)
        try:
            if self._read is None or not self._continue(journals):
                self.deleted_topics, self.delay_levels = DeletedTopics([]), DelayLevelHistory()
                journal_files.load_state(self._folder, self._tables, is_locked=False, only=True)
                self._go_to_end(journals)
        except FileNotFoundError as error:
            self._read = None
            raise StoreBusy(f"the state journal is being replaced: {error}") from error

    @property
    def _tables(self) -> Mapping[int, JournaledTable]:
        return {table.NUMBER: table for table in (self.deleted_topics, self.delay_levels)}

    def _go_to_end(self, journals: dict[int, Path]) -> None:
        self._read, self._at, self._last = None, 0, b""
        if journals:
            self._take(max(journals), journals[max(journals)], apply=False)

    def _continue(self, journals: dict[int, Path]) -> bool:
        """Read what was added; return False if the files are not those that were read."""
        assert self._read is not None
        first, inode = self._read
        path = journals.get(first)
        if path is None or path.stat().st_ino != inode or not self._take(first, path, apply=True):
            return False
        for later in sorted(number for number in journals if number > first):
            self._at, self._last = 0, b""
            self._take(later, journals[later], apply=True)
        return True

    def _take(self, first: int, path: Path, *, apply: bool) -> bool:
        begin = self._at - len(self._last)
        content = fileutil.read_from(path, begin)
        if not content.startswith(self._last):
            return False  # an event was taken back
        found = decode_frames(content)
        tables = self._tables
        for entry in (*found.entries, *found.behind) if apply else ():
            table = tables.get(entry[2]) if len(entry) > _HEAD_FIELDS else None
            if table is not None:
                table.apply(entry[_HEAD_FIELDS:])
        self._read = first, path.stat().st_ino
        self._at = begin + found.length
        self._last = content[found.last : found.length]
        return True


def compare(directory: Path, before: list[tuple[str, int]], log_min: int) -> tuple[list[str], list[tuple[str, int]]]:
    """Compare earlier known deletions with those now in the journal.

    Raise StoreBusy or StoreFailed if the journal cannot be read now.

    Args:
        before: the earlier deletions; those in the queues' checkpoint are added.
        log_min: the log's minimum: the journal no longer lists deletions from before it.

    Returns:
        the topics whose deletion was undone; the deletions from before `log_min`.
    """
    now = read_deleted_topics(directory)
    state = CheckpointState.load(directory / RAYMQ_FOLDER / "state.json")
    known = [*before, *(state.deleted_topics.items() if state is not None else ())]
    never = {topic for topic, place in known if place > max(log_min, now.get(topic, -1))}
    return sorted(never), [(topic, place) for topic, place in known if place <= log_min]


def save(path: Path, deletions: Iterable[tuple[str, int]]) -> None:
    """Save deletions durably, in addition to those already in the file."""
    fileutil.replace(path, json.dumps(sorted({*load(path), *deletions})).encode())


def load(path: Path) -> list[tuple[str, int]]:
    """Return the deletions in a file; nothing if it is missing or invalid."""
    try:
        saved = json.loads(fileutil.read_whole(path))
        # Release 0.1.0 kept one deletion of each topic.
        return [(str(topic), int(place)) for topic, place in (saved.items() if isinstance(saved, dict) else saved)]
    except (FileNotFoundError, *json_file.DECODE_ERRORS):
        return []
