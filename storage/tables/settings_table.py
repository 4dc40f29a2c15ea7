"""A table of settings by name in one JSON file of RocketMQ's form.

The topics of a broker are such a table. A change appends one frame to a journal beside the file, so its cost depends on
the change and not on the size of the table. The file is written later, by the function that `pending` returns, in
another thread than the table's.

Clients determine the content of a line, so `check` rejects a line that the next start could not read before it is
written. If a line of the journal still cannot be read, that setting keeps its previous value and the start continues.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from raymq.storage.errors import InvalidInput, StoreError
from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion
from raymq.storage.tables.journal import Journal, ignore_failure
from raymq.storage.tables.unreadable_changes import UnreadableChange, save_unreadable

_log = logging.getLogger(__name__)
#: Kinds of frames: settings that were put, a deleted name, a replaced value beside the table.
_PUT: Final = "p"
_DELETED: Final = "d"
_BESIDE: Final = "b"
#: After this many lines of the file, the thread that encodes them yields the interpreter to others.
_STEP_LINES: Final = 200
#: The number of names for which the last change is kept.
_KNOWN_CHANGES: Final = 20_000
#: The longest line, in characters: all lines are in memory and in the file.
MAX_LINE: Final = 64 << 10
#: The number of JSON objects around a line in the file: the table and the whole.
_AROUND: Final = 2


class Setting(Protocol):
    """One line of a settings table."""

    @property
    def name(self) -> str:
        """Return the key of the setting."""

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> Self:
        """Parse RocketMQ's JSON object."""

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's JSON object."""


S = TypeVar("S", bound=Setting)


class SettingsTable(Generic[S]):
    """A table of settings, in memory and on disk.

    One thread, except for `sync` and the function that `pending` returns.

    Each change survives a process crash when its call returns. A change by `put` or `delete` also survives a machine
    crash. A change by `put_soon` or `delete_soon` survives one after the next `sync`, so an event loop need not block.
    All of them raise StoreError if the store was opened read-only, and StoreFull or StoreFailed if the disk refuses the
    change: then the table is unchanged, unless only `sync` failed.
    """

    #: The class of a setting.
    SETTING: type[S]
    #: The table's key in the file's object; the values beside the table are kept unchanged.
    KEY: ClassVar[str]
    #: The values beside the table in a new file.
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        path: Path,
        *,
        writable: bool,
        journal: Path | None = None,
        aside: Path | None = None,
        on_failure: Callable[[StoreError], None] = ignore_failure,
    ) -> None:
        """Read the file and the journal of the changes since it was written.

        Args:
            journal: the path of the journal; beside the file if None.
            aside: the folder in which unreadable changes of the journal are kept.
            on_failure: as in `Journal`.

        Raises:
            StoreCorrupt: neither the file nor its previous version can be read.
        """
        self._path = path
        self._writable = writable
        self._on_failure = on_failure
        #: `version` counts the changes; each change makes a new object.
        self.version, beside, self._table = json_file.load_as(path, self._read)
        self._beside = dict(self.DEFAULTS) | beside
        #: The encoded line of each setting, so that a change encodes only the changed settings.
        self._lines: dict[str, tuple[S, str]] = {}
        self._last_saved: bytes | None = None
        #: The version of the table in the file.
        self._saved = self.version.counter
        self._saving = threading.Lock()
        #: The version up to which all frames are on disk.
        self._synced = self.version.counter
        self._syncing = threading.Lock()
        #: The version of each name's last change, the newest last; complete for versions above `_changes_from`.
        self._changes: OrderedDict[str, int] = OrderedDict()
        journal = journal or path.with_name(path.name + ".journal")
        self._journal = Journal(journal, writable=writable, on_failure=on_failure)
        #: Unreadable changes in the journal, which were not applied.
        self.unread: list[UnreadableChange] = []
        for entry in [*self._journal.entries, *self._journal.behind]:
            self._replay(entry)
        for each in self.unread:
            saved = save_unreadable(each, aside / journal.name) if writable and aside is not None else None
            _log.error("%s: %s; the setting is unchanged%s", journal, each, f"; saved in {saved}" if saved else "")
        self._journal.entries.clear()
        self._journal.behind.clear()
        self._changes_from = self.version.counter
        #: The version at which the journal was rotated: frames before it are needed until the file has that version.
        self._diverted_at = self.version.counter

    @property
    def damage(self) -> Sequence[tuple[Path, int, int]]:
        """Return the unreadable parts of the journal: file, offset, bytes."""
        return self._journal.damage

    def get(self, name: str) -> S | None:
        """Return the setting of that name, or None."""
        return self._table.get(name)

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> dict[str, S]:
        """Return a copy of the table."""
        return dict(self._table)

    def changed_since(self, version: DataVersion) -> list[str] | None:
        """Return the names that were put or deleted after `version`.

        Return None if too many changes have followed. The cost depends on the number of changes.
        """
        if not self._changes_from <= version.counter <= self.version.counter:
            return None
        names = []
        for name in reversed(self._changes):
            if self._changes[name] <= version.counter:
                break
            names.append(name)
        return names

    def check(self, setting: S) -> str:
        """Return the line of a setting, after checking that it can be read back unchanged.

        Raises:
            InvalidInput: no start could read it, or it is too long; names the invalid part.
        """
        content, line = setting.to_json(), ""
        try:
            line = json_file.encode(content)
            line.encode()
            if len(line) <= MAX_LINE and self._read_line(setting.name, line).to_json() == content:
                return line
            reason = "the value that is read back differs"
        except json_file.DECODE_ERRORS as error:
            reason = str(error)
        if len(line) > MAX_LINE:
            longest = max(content, key=lambda name: len(str(content[name])))
            raise InvalidInput(longest, f"settings of at most {MAX_LINE} characters of JSON in all", len(line))
        culprit = next((name for name, value in content.items() if not _is_read_again({name: value})), "settings")
        raise InvalidInput(culprit, "JSON that a start can read again", reason)

    def put(self, *settings: S) -> None:
        """Create or replace settings, all in one change.

        Raise InvalidInput as `check` does; then nothing is changed.
        """
        self.put_soon(*settings)
        self.sync()

    def put_soon(self, *settings: S) -> None:
        """Create or replace settings as `put` does, without the `sync`."""
        self._change(_PUT, [(setting.name, self.check(setting)) for setting in settings])
        self._table |= {setting.name: setting for setting in settings}
        self._note([setting.name for setting in settings])

    def delete(self, name: str) -> bool:
        """Delete a setting and return True if it existed."""
        deleted = self.delete_soon(name)
        if deleted:
            self.sync()
        return deleted

    def delete_soon(self, name: str) -> bool:
        """Delete a setting as `delete` does, without the `sync`."""
        if name not in self._table:
            return False
        self._change(_DELETED, name)
        del self._table[name]
        self._note([name])
        return True

    def sync(self) -> None:
        """Wait until all changes made before the call are on disk; any thread.

        Raise StoreFailed if they may not be on disk.
        """
        counter = self.version.counter
        with self._syncing:
            if counter <= self._synced:
                return
            try:
                self._journal.sync()
            except StoreError as error:
                self._on_failure(error)
                raise
            self._synced = counter

    def pending(self) -> Callable[[], None] | None:
        """Return a function that writes the changes so far to the file; None without changes.

        The function may be called in any thread. It raises StoreFull or StoreFailed; then the changes are still in the
        journal.
        """
        if self._saved == self.version.counter and self._journal.empty:
            return None
        self._check_writable()
        if not self._journal.is_rotated:
            self._diverted_at = self.version.counter  # set it first, because a thread that folds reads it
            self._journal.rotate()
        return partial(self._fold, dict(self._table), dict(self._beside), self.version)

    def save(self) -> None:
        """Write the changes so far to the file now.

        Raise as the function that `pending` returns does.
        """
        write = self.pending()
        if write is not None:
            write()

    def close(self) -> None:
        """Close the files; writes nothing."""
        self._journal.close()

    def _replace_in_background(self, key: str, value: Any) -> None:
        """Replace the value of `key` beside the table, as `put_soon` does."""
        self._change(_BESIDE, key, json_file.encode(value))
        self._beside = self._beside | {key: value}

    def _check_writable(self) -> None:
        if not self._writable:
            raise StoreError("the store was opened read-only")

    def _change(self, kind: str, *rest: Any) -> None:
        self._check_writable()
        version = self.version.next()
        self._journal.append((kind, version.counter, version.timestamp_ms, *rest))
        self.version = version

    def _replay(self, entry: tuple[Any, ...]) -> None:
        """Apply a change of the journal, except for its unreadable parts."""
        try:
            kind, counter, timestamp_ms, *rest = entry
            version = DataVersion(int(counter), int(timestamp_ms), self.version.state_version)
            if version.counter <= self.version.counter:
                return  # the file already includes this or a later change
            self.version = version
            if kind == _PUT:
                for name, line in rest[0]:
                    self._replay_line(str(name), line)
            elif kind == _DELETED:
                self._table.pop(rest[0], None)
            elif kind == _BESIDE:
                self._beside = self._beside | {rest[0]: json.loads(rest[1])}
        except json_file.DECODE_ERRORS as error:
            self.unread.append(UnreadableChange(self.version.counter, "", repr(entry), repr(error)))

    def _replay_line(self, name: str, line: str) -> None:
        try:
            self._table[name] = self._read_line(name, line)
        except json_file.DECODE_ERRORS as error:
            self.unread.append(UnreadableChange(self.version.counter, name, str(line), str(error)))

    def _read_line(self, name: str, line: str) -> S:
        return self.SETTING.from_json(name, json_file.parse(line, within=_AROUND))

    def _read(self, raw: Mapping[str, Any]) -> tuple[DataVersion, dict[str, Any], dict[str, S]]:
        """Return the content of the file: version, values beside the table, and the table."""
        beside = {name: value for name, value in raw.items() if name not in ("dataVersion", self.KEY)}
        table: Mapping[str, Any] = raw.get(self.KEY) or {}
        settings = {name: self.SETTING.from_json(name, each) for name, each in table.items()}
        return DataVersion.from_json(raw.get("dataVersion")), beside, settings

    def _note(self, names: Iterable[str]) -> None:
        for name in names:
            self._changes[name] = self.version.counter
            self._changes.move_to_end(name)
        while len(self._changes) > _KNOWN_CHANGES:
            self._changes_from = self._changes.popitem(last=False)[1]

    def _fold(self, table: Mapping[str, S], beside: Mapping[str, Any], version: DataVersion) -> None:
        """Write the file unless it is newer, and drop the frames that it includes."""
        with self._saving:
            if version.counter > self._saved:
                content = self._content(table, beside, version)
                # After a power loss the journal must not be older than the file, or its replay would undo changes.
                self.sync()
                json_file.save_encoded(self._path, content, self._read, self._last_saved)
                self._last_saved, self._saved = content, version.counter
            if self._journal.is_rotated and self._saved >= self._diverted_at:
                self._journal.compact()

    def _content(self, table: Mapping[str, S], beside: Mapping[str, Any], version: DataVersion) -> bytes:
        lines = {}
        items = iter(table.items())
        while chunk := list(islice(items, _STEP_LINES)):
            for name, setting in chunk:
                known = self._lines.get(name)
                if known is None or known[0] is not setting:
                    known = setting, f"{json_file.encode(name)}:{json_file.encode(setting.to_json())}"
                lines[name] = known
            time.sleep(0)
        self._lines = lines
        heads = {"dataVersion": version.to_json(), **beside}
        parts = [f"{json_file.encode(name)}:{json_file.encode(value)}" for name, value in heads.items()]
        rows = ",\n".join([line for _, line in lines.values()])
        parts.append(f"{json_file.encode(self.KEY)}:{{\n{rows}\n}}")
        return ("{\n" + ",\n".join(parts) + "\n}").encode()


def _is_read_again(content: dict[str, Any]) -> bool:
    try:
        line = json_file.encode(content)
        line.encode()
        return json_file.parse(line, within=_AROUND) == content
    except json_file.DECODE_ERRORS:
        return False
