"""Settings that tools changed at run time: {"dataVersion": ..., "settings": {...}}.

Names are RocketMQ's, values are text. A broker uses three of them: two determine when log files are deleted, one
whether messages are accepted. An event or a former file with an invalid value of these three counts as damaged, so that
a broken value never silently becomes another rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from raymq.storage.config import MAX_RETENTION_HOURS
from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion
from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The version of the settings, and the changed settings.
DynamicConfig = tuple[DataVersion, dict[str, str]]


class DynamicConfigTable(JournaledTable):
    """The changed settings of one broker.

    Events: [counter, ms, state version, {name: value}]; the first three are those of the version of the settings.

    Attributes:
        version: the version of the settings.
        settings: all changed settings; callers must not change it.
    """

    NUMBER: ClassVar = 18
    COPIES: ClassVar = 2

    def __init__(self) -> None:
        self.version = DataVersion()
        self.settings: Mapping[str, str] = {}

    def save(self, version: DataVersion, settings: Mapping[str, str]) -> None:
        """Replace all settings durably.

        Raise StoreFull if they cannot be written, StoreFailed if they may not be on disk.
        """
        self.record_durably(_fields(version, settings))

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        counter, ms, state_version, settings = fields
        version = {"counter": counter, "timestamp": ms, "stateVersion": state_version}
        self.version, self.settings = parse_broker_config({"dataVersion": version, "settings": settings})

    def snapshot(self) -> Iterator[Fields]:
        """Return one event with all settings; a broker keeps at most 1,000."""
        if self.settings:
            yield _fields(self.version, self.settings)


def _fields(version: DataVersion, settings: Mapping[str, str]) -> Fields:
    return version.counter, version.timestamp_ms, version.state_version, dict(settings)


def read_settings_events(path: Path) -> list[Fields]:
    """Return the event of a broker's file of format 2, if any.

    Raise StoreCorrupt if neither the file nor its spare copy can be read.
    """
    version, settings = read_broker_config(path)
    return [_fields(version, settings)] if settings else []


def parse_dynamic_config(raw: Mapping[str, Any]) -> DynamicConfig:
    """Parse the JSON object of any server's file."""
    settings: Mapping[str, Any] = raw.get("settings") or {}
    return DataVersion.from_json(raw.get("dataVersion")), {str(name): str(value) for name, value in settings.items()}


def parse_broker_config(raw: Mapping[str, Any]) -> DynamicConfig:
    """Parse the JSON object of a broker's file.

    Raise ValueError if a value is invalid.
    """
    version, settings = parse_dynamic_config(raw)
    for name, read in _CHECKED.items():
        if name in settings:
            read(settings[name])
    return version, settings


def read_broker_config(path: Path) -> DynamicConfig:
    """Read the file of format 2 of a broker, or its spare copy.

    Raise StoreCorrupt if neither can be read.
    """
    return json_file.load_as(path, parse_broker_config)


def parse_retention_hours(value: str) -> float:
    """Return for how many hours log files are kept.

    Raise ValueError if the value is invalid.
    """
    hours = float(value)
    if not 0 < hours < float("inf"):
        raise ValueError("hours, more than 0")
    return min(hours, MAX_RETENTION_HOURS)


def parse_delete_hour(value: str) -> str:
    """Return the hour of the day at which log files are deleted; "*" means any.

    Raise ValueError if the value is invalid.
    """
    if value != "*" and not (value.isdecimal() and value.isascii() and int(value) < 24):
        raise ValueError('"00" to "23" or "*"')
    return value


def parse_permission(value: str) -> int:
    """Return the clients' permission on a broker's topics.

    It is a sum of 4 (read) and 2 (write). Raise ValueError if the value is invalid.
    """
    if value not in ("2", "4", "6"):
        raise ValueError('"6", "4" (read only) or "2" (write only)')
    return int(value)


_CHECKED: Final[Mapping[str, Callable[[str], object]]] = {
    "fileReservedTime": parse_retention_hours,
    "deleteWhen": parse_delete_hour,
    "brokerPermission": parse_permission,
}
