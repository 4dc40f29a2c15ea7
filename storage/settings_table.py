"""A table of settings by name that is kept in one JSON file of RocketMQ's form, such as the topics of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from raymq.storage import json_file
from raymq.storage.errors import StoreError
from raymq.storage.json_file import DataVersion


class Setting(Protocol):
    """One line of such a table."""

    @property
    def name(self) -> str:
        """By which it is found."""

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""


S = TypeVar("S", bound=Setting)


class SettingsTable(Generic[S]):
    """The table, in memory and on disk; each change is durable when the call returns. One thread.

    A change raises StoreError if the store was opened read-only, StoreFull or StoreFailed if the disk does not take
    it; the table is as before then.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        from_json: Callable[[str, Mapping[str, Any]], S],
        *,
        writable: bool,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the file.

        Args:
            key: where the table stands in the file's object; what stands beside it is kept as it is.
            defaults: what stands beside it in a new file.

        Raises:
            StoreCorrupt: neither the file nor the one before it can be read.
        """
        self._path = path
        self._key = key
        self._writable = writable
        raw = json_file.load(path)
        beside = {name: value for name, value in raw.items() if name not in ("dataVersion", key)}
        self._beside = dict(defaults or {}) | beside
        #: Counts the changes; another object after each.
        self.version = DataVersion.from_json(raw.get("dataVersion"))
        table: Mapping[str, Any] = raw.get(key) or {}
        self._table = {name: from_json(name, each) for name, each in table.items()}
        #: Each setting as it stands in the file, so that a change of one costs what one costs.
        self._lines: dict[str, tuple[S, str]] = {}
        self._last_saved: bytes | None = None

    def get(self, name: str) -> S | None:
        """The setting of that name, if there is one."""
        return self._table.get(name)

    def all(self) -> dict[str, S]:
        """A copy of the table."""
        return dict(self._table)

    def put(self, *settings: S) -> None:
        """Create or replace, all in one change."""
        self._save(self._table | {setting.name: setting for setting in settings}, self._beside)

    def delete(self, name: str) -> bool:
        """Remove; whether it was there."""
        if name not in self._table:
            return False
        self._save({n: setting for n, setting in self._table.items() if n != name}, self._beside)
        return True

    def _save(self, table: dict[str, S], beside: dict[str, Any]) -> None:
        """Replace the table and what stands beside it."""
        if not self._writable:
            raise StoreError("the store was opened read-only")
        version = self.version.next()
        lines = {}
        for name, setting in table.items():
            known = self._lines.get(name)
            if known is None or known[0] is not setting:
                known = setting, f"{json_file.encode(name)}:{json_file.encode(setting.to_json())}"
            lines[name] = known
        heads = {"dataVersion": version.to_json(), **beside}
        parts = [f"{json_file.encode(name)}:{json_file.encode(value)}" for name, value in heads.items()]
        rows = ",\n".join([line for _, line in lines.values()])
        parts.append(f"{json_file.encode(self._key)}:{{\n{rows}\n}}")
        content = ("{\n" + ",\n".join(parts) + "\n}").encode()
        json_file.save_encoded(self._path, content, self._last_saved)
        self._table, self._beside, self.version = table, beside, version
        self._lines, self._last_saved = lines, content
