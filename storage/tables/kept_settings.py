"""What tools have changed of a server's settings while it ran, as it is kept: {"dataVersion": ..., "settings": {...}}.

Names are RocketMQ's, values are text. Of a broker three mean something: two decide when log files go, one whether
messages are taken. A file with a value of theirs that cannot be is as good as broken, so that its spare copy is taken,
and never another rule in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from raymq.storage.config import MOST_HOURS
from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion

#: The version of the settings, and what was changed.
Kept = tuple[DataVersion, dict[str, str]]


def kept_of(raw: Mapping[str, Any]) -> Kept:
    """What the object of any server's file says."""
    settings: Mapping[str, Any] = raw.get("settings") or {}
    return DataVersion.from_json(raw.get("dataVersion")), {str(name): str(value) for name, value in settings.items()}


def kept_of_broker(raw: Mapping[str, Any]) -> Kept:
    """What that of a broker's file says; ValueError: a value cannot be."""
    version, settings = kept_of(raw)
    for name, read in _CHECKED.items():
        if name in settings:
            read(settings[name])
    return version, settings


def read_kept(path: Path) -> Kept:
    """A broker's file, or its spare copy; StoreCorrupt: neither can be read."""
    return json_file.load_as(path, kept_of_broker)


def hours_of(value: str) -> float:
    """For how many hours log files are kept; ValueError if that cannot be."""
    hours = float(value)
    if not 0 < hours < float("inf"):
        raise ValueError("hours, more than 0")
    return min(hours, MOST_HOURS)


def delete_hour_of(value: str) -> str:
    """At which hour of the day they go, "*": any; ValueError if that cannot be."""
    if value != "*" and not (value.isdecimal() and value.isascii() and int(value) < 24):
        raise ValueError('"00" to "23" or "*"')
    return value


def permission_of(value: str) -> int:
    """What clients may do with a broker's topics, a sum of 4 (read) and 2 (write); ValueError if that cannot be."""
    if value not in ("2", "4", "6"):
        raise ValueError('"6", "4" (read only) or "2" (write only)')
    return int(value)


_CHECKED: Final[Mapping[str, Callable[[str], object]]] = {
    "fileReservedTime": hours_of,
    "deleteWhen": delete_hour_of,
    "brokerPermission": permission_of,
}
