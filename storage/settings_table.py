"""A table of settings by name that is kept in one JSON file of RocketMQ's form, such as the topics of a broker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from raymq.storage import json_file
from raymq.storage.errors import StoreError
from raymq.storage.json_file import DataVersion
from raymq.storage.made_settings import MadeSettings


class Setting(Protocol):
    """One line of such a table."""

    @property
    def name(self) -> str:
        """By which it is found."""

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""


S = TypeVar("S", bound=Setting)


class SettingsTable(Generic[S]):
    """The table, in memory and on disk. One thread, but for what `pending` returns.

    A change by `put` or `delete` is durable when the call returns; one by `put_soon` is with the next of these, or with
    what `pending` returns. All raise StoreError if the store was opened read-only, the durable ones StoreFull or
    StoreFailed if the disk does not take it; the table is as before then.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        from_json: Callable[[str, Mapping[str, Any]], S],
        *,
        writable: bool,
        defaults: Mapping[str, Any] | None = None,
        made: Path | None = None,
    ) -> None:
        """Read the file.

        Args:
            made: where `put_soon` writes until the table is written.
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
        #: The version on disk.
        self._saved = self.version.counter
        self._saving = threading.Lock()
        self._made = None if made is None else MadeSettings(made, writable=writable)
        if self._made is not None:
            self._take_made(self._made.lines, from_json)

    def _take_made(self, lines: Iterable[Mapping[str, Any]], from_json: Callable[[str, Mapping[str, Any]], S]) -> None:
        """What was made and is not in the file; a line that is damaged is passed over."""
        begun = newest = self.version.counter
        for line in lines:
            try:
                name = str(line["name"])
                made = from_json(name, line["setting"])
                version = None if line.get("version") is None else int(line["version"])
            except (LookupError, ValueError, TypeError, AttributeError, OverflowError):
                continue
            if name not in self._table if version is None else version > begun:
                self._table[name] = made
                newest = max(newest, version or begun + 1)
        if newest > begun:  # what is written next has all of them
            self.version = replace(self.version, counter=newest).next()

    def get(self, name: str) -> S | None:
        """The setting of that name, if there is one."""
        return self._table.get(name)

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> dict[str, S]:
        """A copy of the table."""
        return dict(self._table)

    def put(self, *settings: S) -> None:
        """Create or replace, all in one change."""
        self._save(self._table | {setting.name: setting for setting in settings}, self._beside)

    def put_soon(self, *settings: S) -> None:
        """`put`, at the cost of what is put: it survives the process at once, the machine with the next durable change.

        StoreFull, StoreFailed: not put.
        """
        self._check_writable()
        version = self.version.next()
        if self._made is not None:
            lines = [{"name": each.name, "setting": each.to_json(), "version": version.counter} for each in settings]
            self._made.add(*lines)
        self._table |= {setting.name: setting for setting in settings}
        self.version = version

    def pending(self) -> Callable[[], None] | None:
        """What makes the changes so far durable, to be called in any thread; None if they are.

        It raises StoreFull, StoreFailed; the changes are pending then as before.
        """
        if self._saved == self.version.counter:
            if self._made is not None:
                self._made.clear()
            return None
        return partial(self._write, self._content(self._table, self._beside, self.version), self.version.counter)

    def save(self) -> None:
        """Make the changes so far durable now; raises as what `pending` returns."""
        write = self.pending()
        if write is not None:
            write()
            self.pending()

    def delete(self, name: str) -> bool:
        """Remove; whether it was there."""
        if name not in self._table:
            return False
        self._save({n: setting for n, setting in self._table.items() if n != name}, self._beside)
        return True

    def _check_writable(self) -> None:
        if not self._writable:
            raise StoreError("the store was opened read-only")

    def _save(self, table: dict[str, S], beside: dict[str, Any]) -> None:
        """Replace the table and what stands beside it."""
        self._check_writable()
        # Counted in any case: a write that has failed may be on disk all the same, and nothing else may be called so.
        self.version = version = self.version.next()
        self._write(self._content(table, beside, version), version.counter)
        self._table, self._beside = table, beside
        if self._made is not None:
            with contextlib.suppress(StoreError):  # what is in it counts no more; it is emptied another time
                self._made.clear()

    def close(self) -> None:
        """Let go of files; writes nothing."""
        if self._made is not None:
            self._made.close()

    def _content(self, table: Mapping[str, S], beside: Mapping[str, Any], version: DataVersion) -> bytes:
        lines = {}
        for name, setting in table.items():
            known = self._lines.get(name)
            if known is None or known[0] is not setting:
                known = setting, f"{json_file.encode(name)}:{json_file.encode(setting.to_json())}"
            lines[name] = known
        self._lines = lines
        heads = {"dataVersion": version.to_json(), **beside}
        parts = [f"{json_file.encode(name)}:{json_file.encode(value)}" for name, value in heads.items()]
        rows = ",\n".join([line for _, line in lines.values()])
        parts.append(f"{json_file.encode(self._key)}:{{\n{rows}\n}}")
        return ("{\n" + ",\n".join(parts) + "\n}").encode()

    def _write(self, content: bytes, counter: int) -> None:
        """Unless something newer is on disk by now."""
        with self._saving:
            if counter > self._saved:
                json_file.save_encoded(self._path, content, self._last_saved)
                self._last_saved, self._saved = content, counter
