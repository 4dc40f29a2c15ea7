"""A server's settings under RocketMQ's names: all are readable, some can be changed.

Values are texts. RocketMQ's tools set several names at once and expect to read them back, including names that have no
meaning here; these are stored as they are. Changes are saved and applied again at the next start: a broker's in its
state journal, a name server's in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from raymq.actors.errors import InvalidInput
from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion
from raymq.storage.tables.dynamic_config import parse_dynamic_config

MAX_SETTINGS = 1000
#: The most characters of all names and values that were changed.
MAX_CHARACTERS = 256 * 1024


class SavedSettings(Protocol):
    """Where the changed settings of a server are kept."""

    @property
    def version(self) -> DataVersion:
        """Return the version of the saved settings."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the saved settings."""

    def save(self, version: DataVersion, settings: Mapping[str, str]) -> None:
        """Replace the saved settings durably; raise StoreFull or StoreFailed if that fails."""


class SettingsFile:
    """The file of a name server's changed settings."""

    def __init__(self, path: Path) -> None:
        """Read the file; raise StoreCorrupt if it cannot be read."""
        self._path = path
        self.version: DataVersion
        self.settings: Mapping[str, str]
        self.version, self.settings = json_file.load_as(path, parse_dynamic_config)

    def save(self, version: DataVersion, settings: Mapping[str, str]) -> None:
        """Replace the file as `json_file.save`."""
        content = {"dataVersion": version.to_json(), "settings": settings}
        json_file.save(self._path, content, parse_dynamic_config)


class ServerSettings:
    """The settings of one server.

    Used on one event loop. A change is durable when `update` returns.
    """

    def __init__(
        self,
        saved: SavedSettings,
        fixed: Mapping[str, str],
        changeable: Mapping[str, tuple[str, Callable[[str], None]]],
    ) -> None:
        """Apply the changes that were saved.

        Args:
            saved: the former changes, and where later ones are saved.
            fixed: settings that keep their value as long as the server runs.
            changeable: name -> (value at the start, function that applies another value; it raises ValueError for an
                invalid value and then changes nothing).
        """
        self._saved = saved
        self._fixed = dict(fixed)
        self._changeable = dict(changeable)
        self.version = saved.version
        self._changed: dict[str, str] = {}
        for name, value in saved.settings.items():
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
        self._saved.save(self.version, self._changed)

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
