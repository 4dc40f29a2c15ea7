"""Tables of settings by name, such as topics, and their form in RocketMQ's files.

Clients determine the content of a line, so `check` rejects a line that the next start could not read before it is
written. If a line of the journal still cannot be read, that setting keeps its previous value and the start continues.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from raymq.storage.errors import InvalidInput
from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion
from raymq.storage.journal.journal_frames import check_encodable
from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: Kinds of events: settings that were put, a deleted name, a replaced value beside the table, the table's version.
_PUT: Final = "p"
_DELETED: Final = "d"
_BESIDE: Final = "b"
_VERSION: Final = "v"
#: After this many lines, the thread that encodes them yields the interpreter to others.
_STEP_LINES: Final = 200
#: The number of names for which the last change is kept.
_KNOWN_CHANGES: Final = 20_000
#: The longest line, in characters: all lines are in memory and in the file.
MAX_LINE: Final = 64 << 10
#: The largest version of RocketMQ's.
_MAX_COUNTER: Final = (1 << 63) - 1
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


class SettingsTable(JournaledTable, Generic[S]):
    """Settings by name. Changed by the store's thread; any may call `sync` and `to_json`.

    Events: ["p", counter, time, [[name, line], ...]], ["d", counter, time, name], ["b", counter, time, key, JSON],
    ["v", counter, time, state version]; counter and time (ms) are the version that the change made. In a snapshot the
    counter of a setting that has not changed since the opening is 0.

    Each change survives a process crash when its call returns. A change by `put` or `delete` also survives a machine
    crash. A change by `put_soon` or `delete_soon` survives one after the next `sync`, so an event loop need not block.
    All of them raise StoreError if the store was opened read-only, and StoreFull or StoreFailed if the disk refuses the
    change: then the table is unchanged, unless only `sync` failed.

    Attributes:
        version: counts the changes; each change makes a new object.
    """

    #: The class of a setting.
    SETTING: type[S]
    #: The table's key in the file's object; the values beside the table are kept unchanged.
    KEY: ClassVar[str]
    #: The values beside the table in a new file.
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        self.version = DataVersion()
        self._table: dict[str, S] = {}
        self._beside: dict[str, Any] = dict(self.DEFAULTS)
        #: The encoded line of each setting, so that a change encodes only the changed settings.
        self._lines: dict[str, tuple[S, str]] = {}
        #: The settings that are being put, by name and line.
        self._checked: dict[tuple[str, str], S] = {}
        #: The version of each name's last change, the newest last; complete for versions above `_changes_from`.
        self._changes: OrderedDict[str, int] = OrderedDict()
        self._changes_from = 0

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
        lines = [self.check(setting) for setting in settings]
        self._checked = {(setting.name, line): setting for setting, line in zip(settings, lines, strict=True)}
        try:
            self._change(_PUT, [(setting.name, line) for setting, line in zip(settings, lines, strict=True)])
        finally:
            self._checked = {}

    def delete(self, name: str) -> bool:
        """Delete a setting and return True if it existed."""
        deleted = self.delete_soon(name)
        self.sync()
        return deleted

    def delete_soon(self, name: str) -> bool:
        """Delete a setting as `delete` does, without the `sync`."""
        if name not in self._table:
            return False
        self._change(_DELETED, name)
        return True

    def replace_in_background(self, key: str, value: Any) -> None:
        """Replace the value of `key` beside the table, as `put_soon` does."""
        self._change(_BESIDE, key, json_file.encode(value))

    def _change(self, kind: str, *rest: Any) -> None:
        version = self.version.next()
        self.record(kind, version.counter, version.timestamp_ms, *rest)

    # -- events --------------------------------------------------------------------------------------------------

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class. A setting that cannot be read keeps its value."""
        kind, counter, timestamp_ms, *rest = fields
        version = DataVersion(int(counter), int(timestamp_ms), self.version.state_version)
        names: list[str] = []
        problem: Exception | None = None
        if kind == _PUT:
            for name, line in rest[0]:
                try:
                    self._table[name] = self._checked.get((name, line)) or self._read_line(name, line)
                    names.append(name)
                except json_file.DECODE_ERRORS as error:
                    problem = ValueError(f"{name}: {error}")
        elif kind == _DELETED:
            self._table.pop(rest[0], None)
            names += rest
        elif kind == _BESIDE:
            self._beside = self._beside | {rest[0]: json.loads(rest[1])}
        elif kind == _VERSION:
            version = DataVersion(version.counter, version.timestamp_ms, int(rest[0]))
        else:
            raise ValueError(f"no kind of event: {kind!r:.20}")
        if version.counter >= self.version.counter:  # else it is replayed over a newer snapshot
            self.version = version
        self._note(names, version.counter)
        if problem is not None:
            raise problem

    def snapshot(self) -> Iterator[Fields]:
        """Return the version, the values beside the table, and an event for each setting."""
        # All copies are of one moment: a deletion between version and table would not be counted when it is replayed.
        version, beside, table, changes = self.version, self._beside, self._table.copy(), self._changes.copy()
        at = version.counter, version.timestamp_ms
        yield _VERSION, *at, version.state_version
        for key, value in beside.items():
            yield _BESIDE, *at, key, json_file.encode(value)
        for name, setting in table.items():
            yield _PUT, changes.get(name, 0), version.timestamp_ms, [(name, json_file.encode(setting.to_json()))]

    def end_loading(self) -> None:
        """Begin to answer `changed_since`; the names that were loaded do not count as changed."""
        self._changes.clear()
        self._changes_from = self.version.counter

    def changed_after(self, counter: int) -> set[str]:
        """Return the names that are known to have changed after version `counter`."""
        return {name for name, change in self._changes.items() if change > counter}

    # -- RocketMQ's file -----------------------------------------------------------------------------------------

    def replace_all(self, content: Mapping[str, Any], kept: Iterable[str] = ()) -> Iterator[Fields]:
        """Return the events that give the table the content of RocketMQ's file.

        Args:
            content: the object in the file.
            kept: the names whose present settings stay, whatever the file has.

        Raises:
            one of `json_file.DECODE_ERRORS`: it is no such table.
        """
        version, beside, table = self.parse(content)
        at = max(version.counter, self.version.counter) + 1, version.timestamp_ms
        kept = set(kept)
        for name in self._table.keys() - table.keys() - kept:
            yield _DELETED, *at, name
        for name, setting in table.items():
            if name not in kept:
                yield _PUT, *at, [(name, json_file.encode(setting.to_json()))]
        for key, value in beside.items():
            yield _BESIDE, *at, key, json_file.encode(value)
        yield _VERSION, *at, version.state_version

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> tuple[DataVersion, dict[str, Any], dict[str, S]]:
        """Return the content of the file: version, values beside the table, and the table.

        Raise as `replace_all`.
        """
        beside = {name: value for name, value in raw.items() if name not in ("dataVersion", cls.KEY, "raymqCrc")}
        table: Mapping[str, Any] = raw.get(cls.KEY) or {}
        settings = {name: cls.SETTING.from_json(name, each) for name, each in table.items()}
        version = DataVersion.from_json(raw.get("dataVersion"))
        if version.counter > _MAX_COUNTER:
            raise ValueError(f"not a version: {version.counter}")
        lines = {name: json_file.encode(setting.to_json()) for name, setting in settings.items()}
        check_encodable((version.timestamp_ms, version.state_version, json_file.encode(beside), lines))
        return version, beside, settings

    def to_json(self) -> str:
        """Return the content of the file. Any thread may call it, one at a time.

        Each copy of a table is one atomic operation of the interpreter.
        """
        version, beside, lines = self.version, self._beside, {}
        items = iter(self._table.copy().items())
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
        return "{\n" + ",\n".join(parts) + "}"

    def _read_line(self, name: str, line: str) -> S:
        return self.SETTING.from_json(name, json_file.parse(line, within=_AROUND))

    def _note(self, names: Iterable[str], counter: int) -> None:
        for name in names:
            self._changes[name] = counter
            self._changes.move_to_end(name)
        while len(self._changes) > _KNOWN_CHANGES:
            self._changes_from = self._changes.popitem(last=False)[1]


def _is_read_again(content: dict[str, Any]) -> bool:
    try:
        line = json_file.encode(content)
        line.encode()
        return json_file.parse(line, within=_AROUND) == content
    except json_file.DECODE_ERRORS:
        return False
