"""Stored messages of which no copy could be made: which message, for what, and why.

Each note is one line of JSON, which people can read, too. The records stay in the log until they expire; a note holds
their position. `raymq/set_aside.jsonl` and `set_aside.jsonl.older` keep at least the newest `KEPT` notes: a full file
replaces the older one, and no note is rewritten. An unreadable line is skipped, so that no content of the files can
prevent a broker from starting.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil, json_file

#: The number of notes that are kept in memory, and in a file.
KEPT: Final = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """One quarantined message.

    Attributes:
        duty: the copy that should have been made, such as "delay level" or "retry".
        owner: for whom: a group, a level, a transaction; empty without an owner.
        topic, queue_id, offset: its position in a queue; "" and -1 if only its position in the log is known.
        physical_offset: its position in the log, -1 if the queue's entry does not hold it.
        message_id: empty if it is not known.
        reason: one sentence.
        time_ms: when it was quarantined.
    """

    duty: str
    owner: str
    topic: str
    queue_id: int
    offset: int
    physical_offset: int
    message_id: str
    reason: str
    time_ms: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key of the note; notes with equal keys describe the same outcome."""
        return self.duty, self.owner, self.topic, self.queue_id, self.offset, self.physical_offset

    def __str__(self) -> str:
        what = f"message {self.message_id}" if self.message_id else "a message"
        where = f"{self.topic} queue {self.queue_id} offset {self.offset}, " if self.topic else ""
        return f"{what} ({where}byte {self.physical_offset} of the log): {self.reason}"


class QuarantineFile:
    """The notes of one store.

    Only the store's writer uses it, except for `sync`, which any thread may call.
    """

    def __init__(self, path: Path) -> None:
        """Read the existing notes.

        Raise StoreBusy or StoreFailed if they cannot be read now.
        """
        self._path = path
        self._older = path.with_name(path.name + ".older")
        self._notes: OrderedDict[tuple[Any, ...], QuarantineEntry] = OrderedDict()
        #: The number of notes by duty: the kept ones and all that were added since.
        self.counts: Counter[str] = Counter()
        self._lines = 0
        self._torn = False
        self._dirty = self._is_older_dirty = False
        self._writing = threading.Lock()
        self._load()

    def notes(self) -> list[QuarantineEntry]:
        """Return the kept notes, oldest first."""
        return list(self._notes.values())

    def put(self, notes: Iterable[QuarantineEntry]) -> list[QuarantineEntry]:
        """Add notes; they survive a process crash when this returns.

        Returns:
            The notes that are new.

        Raises:
            StoreFull, StoreFailed: none of the notes is kept.
        """
        new = {note.key: note for note in notes if note.key not in self._notes}
        if not new:
            return []
        content = b"".join(map(_line, new.values()))
        with self._writing:
            if self._lines >= KEPT:
                self._restart()
            self._write(content)
            self._lines += len(new)
            self._dirty = True
        for note in new.values():
            self._remember(note)
        return list(new.values())

    def sync(self) -> None:
        """Write all notes to disk, so that they survive a machine crash; any thread.

        Raise StoreFailed if that fails.
        """
        with self._writing:
            if self._is_older_dirty:
                self._sync(self._older)
                fileutil.sync_directory(self._path.parent)
                self._is_older_dirty = False
            if self._dirty:
                self._sync(self._path)
                self._dirty = False

    @staticmethod
    def _sync(path: Path) -> None:
        fd = fileutil.open_for_append(path)
        try:
            fileutil.fdatasync(fd, path)
        finally:
            fileutil.close(fd)

    def _remember(self, note: QuarantineEntry) -> None:
        self.counts[note.duty] += 1
        self._notes[note.key] = note
        while len(self._notes) > KEPT:
            self._notes.popitem(last=False)

    def _write(self, content: bytes) -> None:
        fileutil.make_folder(self._path.parent)
        fd = fileutil.open_for_append(self._path)
        try:
            fileutil.write_all(fd, b"\n" + content if self._torn else content, self._path)
        except StoreError:
            self._torn = True
            raise
        finally:
            fileutil.close(fd)
        self._torn = False

    def _restart(self) -> None:
        """Drop the oldest notes; if the disk refuses, retry at a later `put`."""
        try:
            fileutil.move(self._path, self._older)
        except StoreError as error:
            _log.warning("old entries of set aside messages could not be dropped yet: %s", error)
        else:
            self._is_older_dirty |= self._dirty
            self._lines, self._torn, self._dirty = 0, False, False

    def _load(self) -> None:
        self._read(self._older)
        self._lines, self._torn = self._read(self._path)

    def _read(self, path: Path) -> tuple[int, bool]:
        """Load the notes of a file.

        Return how many lines it has, and whether the last line has no end.
        """
        try:
            content = fileutil.read_whole(path)
        except FileNotFoundError:
            return 0, False
        lines = content.split(b"\n")
        for line in lines:
            note = _read(line)
            if note is not None:
                self._remember(note)
        return len(lines), lines[-1] != b""


def _line(note: QuarantineEntry) -> bytes:
    return json.dumps(asdict(note)).encode() + b"\n"


def _read(line: bytes) -> QuarantineEntry | None:
    try:
        fields = json.loads(line)
        queue_id, offset, place, time_ms = [
            int(fields[name]) for name in ("queue_id", "offset", "physical_offset", "time_ms")
        ]
        duty, owner, topic, message_id, reason = [
            str(fields[name]) for name in ("duty", "owner", "topic", "message_id", "reason")
        ]
    except json_file.DECODE_ERRORS:
        return None
    return QuarantineEntry(duty, owner, topic, queue_id, offset, place, message_id, reason, time_ms)
