"""A server's settings under RocketMQ's names: all are readable, some can be changed.

Values are texts. RocketMQ's tools set several names at once and expect to read them back, including names that have no
meaning here; these are stored as they are. Changes are saved in a file and applied again at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.storage.files import json_file
from raymq.storage.tables.dynamic_config import DynamicConfig, parse_dynamic_config

MAX_SETTINGS = 1000
#: The most characters of all names and values that were changed.
MAX_CHARACTERS = 256 * 1024


class ServerSettings:
    """The settings of one server.

    Used on one event loop. A change is durable when `update` returns.
    """

    def __init__(
        self,
        path: Path,
        fixed: Mapping[str, str],
        changeable: Mapping[str, tuple[str, Callable[[str], None]]],
        read: Callable[[Mapping[str, Any]], DynamicConfig] = parse_dynamic_config,
    ) -> None:
        """Load the changes that were saved, and apply them.

        Args:
            fixed: settings that keep their value as long as the server runs.
            changeable: name -> (value at the start, function that applies another value; it raises ValueError for an
                invalid value and then changes nothing).
            read: parses the file's object; raises ValueError for invalid content.

        Raises:
            StoreCorrupt: the file cannot be read.
        """
        self._path = path
        self._read = read
        self._fixed = dict(fixed)
        self._changeable = dict(changeable)
        self.version, saved = json_file.load_as(path, read)
        self._changed: dict[str, str] = {}
        for name, value in saved.items():
            if name not in self._fixed:
                self._apply(name, value)
                self._changed[name] = value

    def all(self) -> dict[str, str]:
        """Return all settings."""
        return {name: value for name, (value, _) in self._changeable.items()} | self._changed | self._fixed

    def update(self, changes: Mapping[str, str]) -> None:
        """Change settings, all or none.

        Raises:
            InvalidInput: a setting cannot be changed while the server runs, or a value is invalid; nothing was changed.
            StoreFull, StoreFailed: the changes were applied, but not saved, and are lost when the server ends.
        """
        for name, value in changes.items():
            if self._fixed.get(name, value) != value:
                raise InvalidInput(name, f"{self._fixed[name]}: it cannot be changed while the server runs", value)
        changed = {name: value for name, value in changes.items() if name not in self._fixed}
        if len(self._changed | changed) > MAX_SETTINGS:
            raise InvalidInput("settings", f"at most {MAX_SETTINGS} names", len(self._changed | changed))
        characters = sum(len(name) + len(value) for name, value in (self._changed | changed).items())
        if characters > MAX_CHARACTERS:
            raise InvalidInput("settings", f"at most {MAX_CHARACTERS} characters in all", characters)
        before = self.all()
        applied: list[str] = []
        try:
            for name, value in changed.items():
                self._apply(name, value)
                applied.append(name)
        except InvalidInput:
            for name in applied:
                self._apply(name, before.get(name, ""))
            raise
        self._changed |= changed
        self.version = self.version.next()
        json_file.save(self._path, {"dataVersion": self.version.to_json(), "settings": self._changed}, self._read)

    def _apply(self, name: str, value: str) -> None:
        _, change = self._changeable.get(name, ("", _ignore))
        try:
            change(value)
        except ValueError as error:
            raise InvalidInput(name, str(error), value) from error


def _ignore(_: str) -> None:
    """Ignore a setting of RocketMQ that has no meaning here."""


def parse_bool(value: str) -> bool:
    """Return the flag in "true" or "false"; raise ValueError for any other text."""
    if value not in ("true", "false"):
        raise ValueError('"true" or "false"')
    return value == "true"
