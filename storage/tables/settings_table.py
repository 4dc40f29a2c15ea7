"""A table of settings by name that is kept in one JSON file of RocketMQ's form, such as the topics of a broker.

A change is one frame of a journal beside the file, so that it costs what is changed and not what there is. The file
itself is written behind it: by whoever calls what `pending` returns, in another thread than the table's.

Clients say what is in a line, so what the next start could not read is refused before it is written (`check`). Where a
line of the journal cannot be read all the same that setting stays what it was before, and the start goes on.
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
from raymq.storage.tables.unread_changes import UnreadChange, keep

_log = logging.getLogger(__name__)
#: Kinds of frames: settings that were put, a name that was deleted, something beside the table that was replaced.
_PUT: Final = "p"
_DELETED: Final = "d"
_BESIDE: Final = "b"
#: After so many lines of the file the thread that makes them lets others have the interpreter.
_STEP_LINES: Final = 200
#: Of so many names it is known when they were changed last.
_KNOWN_CHANGES: Final = 20_000
#: The longest line, in characters: all of them are in memory, and in the file.
MOST_LINE: Final = 64 << 10
#: In the file so many objects are around a line: the table and the whole.
_AROUND: Final = 2


class Setting(Protocol):
    """One line of such a table."""

    @property
    def name(self) -> str:
        """By which it is found."""

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> Self:
        """From RocketMQ's object."""

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""


S = TypeVar("S", bound=Setting)


class SettingsTable(Generic[S]):
    """The table, in memory and on disk. One thread, but for `sync` and what `pending` returns.

    Each change survives the death of the process when its call returns. One by `put` or `delete` survives that of the
    machine, too; one by `put_soon` or `delete_soon` does after the next `sync`, for which a loop need not stand still.
    All raise StoreError if the store was opened read-only, and StoreFull or StoreFailed if the disk does not take the
    change: the table is as before then, unless it is `sync` that failed.
    """

    #: What a line is.
    SETTING: type[S]
    #: Where the table stands in the file's object; what stands beside it is kept as it is.
    KEY: ClassVar[str]
    #: What stands beside it in a new file.
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
        """Read the file, and the journal of what was changed since it was written.

        Args:
            journal: where; beside the file if None.
            aside: the folder in which changes of the journal are kept that cannot be read.
            on_failure: as in `Journal`.

        Raises:
            StoreCorrupt: neither the file nor the one before it can be read.
        """
        self._path = path
        self._writable = writable
        self._on_failure = on_failure
        #: `version` counts the changes; another object after each.
        self.version, beside, self._table = json_file.load_as(path, self._read)
        self._beside = dict(self.DEFAULTS) | beside
        #: Each setting as it stands in the file, so that a change of one costs what one costs.
        self._lines: dict[str, tuple[S, str]] = {}
        self._last_saved: bytes | None = None
        #: The version in the file.
        self._saved = self.version.counter
        self._saving = threading.Lock()
        #: The version of which all frames are on disk.
        self._synced = self.version.counter
        self._syncing = threading.Lock()
        #: By name the version of the last change, the newest last; of all changes above `_changes_from`.
        self._changes: OrderedDict[str, int] = OrderedDict()
        journal = journal or path.with_name(path.name + ".journal")
        self._journal = Journal(journal, writable=writable, on_failure=on_failure)
        #: Changes that the journal has and that cannot be read: they were not made.
        self.unread: list[UnreadChange] = []
        for entry in [*self._journal.entries, *self._journal.behind]:
            self._hear(entry)
        for each in self.unread:
            kept = keep(each, aside / journal.name) if writable and aside is not None else None
            _log.error("%s: %s, so that it stays as it was%s", journal, each, f"; kept in {kept}" if kept else "")
        self._journal.entries.clear()
        self._journal.behind.clear()
        self._changes_from = self.version.counter
        #: The version at which the journal was diverted: frames from before then are needed until it is in the file.
        self._diverted_at = self.version.counter

    @property
    def damage(self) -> Sequence[tuple[Path, int, int]]:
        """What of the journal could not be read: file, offset, bytes."""
        return self._journal.damage

    def get(self, name: str) -> S | None:
        """The setting of that name, if there is one."""
        return self._table.get(name)

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> dict[str, S]:
        """A copy of the table."""
        return dict(self._table)

    def changed_since(self, version: DataVersion) -> list[str] | None:
        """The names of what was put or deleted after that version; None if too much was since to know.

        It costs what was changed.
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
        """The line of a setting, which can be read again as it is.

        Raises:
            InvalidInput: no start could read it, or it is too long; names what of it.
        """
        told, line = setting.to_json(), ""
        try:
            line = json_file.encode(told)
            line.encode()
            if len(line) <= MOST_LINE and self._read_line(setting.name, line).to_json() == told:
                return line
            reason = "what is read differs"
        except json_file.ANOTHER_FORM as error:
            reason = str(error)
        if len(line) > MOST_LINE:
            longest = max(told, key=lambda name: len(str(told[name])))
            raise InvalidInput(longest, f"settings of at most {MOST_LINE} characters of JSON in all", len(line))
        culprit = next((name for name, value in told.items() if not _is_read_again({name: value})), "settings")
        raise InvalidInput(culprit, "JSON that a start can read again", reason)

    def put(self, *settings: S) -> None:
        """Create or replace, all in one change; InvalidInput as `check`, and nothing is changed."""
        self.put_soon(*settings)
        self.sync()

    def put_soon(self, *settings: S) -> None:
        """`put`, but for the `sync`."""
        self._change(_PUT, [(setting.name, self.check(setting)) for setting in settings])
        self._table |= {setting.name: setting for setting in settings}
        self._note([setting.name for setting in settings])

    def delete(self, name: str) -> bool:
        """Remove; whether it was there."""
        deleted = self.delete_soon(name)
        if deleted:
            self.sync()
        return deleted

    def delete_soon(self, name: str) -> bool:
        """`delete`, but for the `sync`."""
        if name not in self._table:
            return False
        self._change(_DELETED, name)
        del self._table[name]
        self._note([name])
        return True

    def sync(self) -> None:
        """Wait until all changes of before the call are on disk. Any thread. StoreFailed: they may not be."""
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
        """What brings the changes so far into the file, to be called in any thread; None if they are there.

        It raises StoreFull, StoreFailed; they are in the journal then as before.
        """
        if self._saved == self.version.counter and self._journal.empty:
            return None
        self._check_writable()
        if not self._journal.is_diverted:
            self._diverted_at = self.version.counter  # First: a thread that settles asks for it.
            self._journal.divert()
        return partial(self._fold, dict(self._table), dict(self._beside), self.version)

    def save(self) -> None:
        """Bring the changes so far into the file now; raises as what `pending` returns."""
        write = self.pending()
        if write is not None:
            write()

    def close(self) -> None:
        """Let go of files; writes nothing."""
        self._journal.close()

    def _replace_beside(self, key: str, value: Any) -> None:
        """Replace what stands beside the table under that key, as `put_soon` does."""
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

    def _hear(self, entry: tuple[Any, ...]) -> None:
        """Make a change that the journal tells, but for what of it cannot be read."""
        try:
            kind, counter, timestamp_ms, *rest = entry
            version = DataVersion(int(counter), int(timestamp_ms), self.version.state_version)
            if version.counter <= self.version.counter:
                return  # the file says it, or what became of it since
            self.version = version
            if kind == _PUT:
                for name, told in rest[0]:
                    self._hear_line(str(name), told)
            elif kind == _DELETED:
                self._table.pop(rest[0], None)
            elif kind == _BESIDE:
                self._beside = self._beside | {rest[0]: json.loads(rest[1])}
        except json_file.ANOTHER_FORM as error:
            self.unread.append(UnreadChange(self.version.counter, "", repr(entry), repr(error)))

    def _hear_line(self, name: str, told: str) -> None:
        try:
            self._table[name] = self._read_line(name, told)
        except json_file.ANOTHER_FORM as error:
            self.unread.append(UnreadChange(self.version.counter, name, str(told), str(error)))

    def _read_line(self, name: str, told: str) -> S:
        return self.SETTING.from_json(name, json_file.parse(told, within=_AROUND))

    def _read(self, raw: Mapping[str, Any]) -> tuple[DataVersion, dict[str, Any], dict[str, S]]:
        """What the file says: its version, what stands beside the table, and the table."""
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
        """Write the file, unless it says something newer by now, and drop the frames that it makes needless."""
        with self._saving:
            if version.counter > self._saved:
                content = self._content(table, beside, version)
                # After a loss of power the journal must not say less than the file, or it would take changes back.
                self.sync()
                json_file.save_encoded(self._path, content, self._read, self._last_saved)
                self._last_saved, self._saved = content, version.counter
            if self._journal.is_diverted and self._saved >= self._diverted_at:
                self._journal.settle()

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


def _is_read_again(told: dict[str, Any]) -> bool:
    try:
        line = json_file.encode(told)
        line.encode()
        return json_file.parse(line, within=_AROUND) == told
    except json_file.ANOTHER_FORM:
        return False
