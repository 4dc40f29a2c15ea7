"""Settings that tools changed at run time: {"dataVersion": ..., "settings": {...}}.

Names are RocketMQ's, values are text. A broker uses three of them: two determine when log files are deleted, one
whether messages are accepted. A file with an invalid value of these three counts as damaged and its spare copy is used,
so that a broken value never silently becomes another rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from raymq.storage.config import MAX_RETENTION_HOURS
from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion

#: The version of the settings, and the changed settings.
DynamicConfig = tuple[DataVersion, dict[str, str]]


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
    """Read a broker's file or its spare copy.

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
