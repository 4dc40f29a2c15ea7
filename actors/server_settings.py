"""A server's settings under RocketMQ's names: all can be read, some changed while it runs. Values are text.

Tools set several names at once and expect to read them back, also such as mean nothing here: those are kept as they
are. What was changed is kept in a file and applied again at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.storage.files import json_file
from raymq.storage.tables.kept_settings import Kept, kept_of

MAX_SETTINGS = 1000
#: Of all names and values that were changed.
MAX_CHARACTERS = 256 * 1024


class Settings:
    """Used on one event loop; a change is durable when `update` returns."""

    def __init__(
        self,
        path: Path,
        fixed: Mapping[str, str],
        changeable: Mapping[str, tuple[str, Callable[[str], None]]],
        read: Callable[[Mapping[str, Any]], Kept] = kept_of,
    ) -> None:
        """Load what was changed before and apply it.

        Args:
            fixed: names that have the value of the start for as long as the server runs.
            changeable: name -> (value at the start, what to call with another one; it raises ValueError for a value
                that cannot be and then changes nothing).
            read: what the file's object says; ValueError if it has what cannot be.

        Raises:
            StoreCorrupt: the file cannot be read.
        """
        self._path = path
        self._read = read
        self._fixed = dict(fixed)
        self._changeable = dict(changeable)
        self.version, told = json_file.load_as(path, read)
        self._changed: dict[str, str] = {}
        for name, value in told.items():
            if name not in self._fixed:
                self._apply(name, value)
                self._changed[name] = value

    def all(self) -> dict[str, str]:
        """Every setting."""
        return {name: value for name, (value, _) in self._changeable.items()} | self._changed | self._fixed

    def update(self, changes: Mapping[str, str]) -> None:
        """Change settings, all or none.

        Raises:
            InvalidInput: a name cannot be changed while the server runs, or a value cannot be; nothing changed.
            StoreFull, StoreFailed: applied, but it will be forgotten with the server's end.
        """
        for name, value in changes.items():
            if self._fixed.get(name, value) != value:
                raise InvalidInput(name, f"{self._fixed[name]}: it cannot be changed while the server runs", value)
        wanted = {name: value for name, value in changes.items() if name not in self._fixed}
        if len(self._changed | wanted) > MAX_SETTINGS:
            raise InvalidInput("settings", f"at most {MAX_SETTINGS} names", len(self._changed | wanted))
        characters = sum(len(name) + len(value) for name, value in (self._changed | wanted).items())
        if characters > MAX_CHARACTERS:
            raise InvalidInput("settings", f"at most {MAX_CHARACTERS} characters in all", characters)
        before = self.all()
        applied: list[str] = []
        try:
            for name, value in wanted.items():
                self._apply(name, value)
                applied.append(name)
        except InvalidInput:
            for name in applied:
                self._apply(name, before.get(name, ""))
            raise
        self._changed |= wanted
        self.version = self.version.next()
        json_file.save(self._path, {"dataVersion": self.version.to_json(), "settings": self._changed}, self._read)

    def _apply(self, name: str, value: str) -> None:
        _, change = self._changeable.get(name, ("", _ignore))
        try:
            change(value)
        except ValueError as error:
            raise InvalidInput(name, str(error), value) from error


def _ignore(_: str) -> None:
    """What a name means that RocketMQ has and we have not."""


def truth(value: str) -> bool:
    """The flag that "true" or "false" says; ValueError for anything else."""
    if value not in ("true", "false"):
        raise ValueError('"true" or "false"')
    return value == "true"
