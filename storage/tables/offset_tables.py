"""The files of offsets, in RocketMQ's form: config/consumerOffset.json and config/delayOffset.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion


@dataclass(slots=True)
class ConsumerTable:
    """How far groups are.

    Attributes:
        offsets: by group, topic and queue id.
        resets: group, topic and queue id of the queues whose group was reset and has not gone there yet.
        forgotten: where the log ended when topics were deleted of which nothing is told here; None: nobody wrote it
            down then, or there is no file.
        is_there: whether there is a file.
        is_foreign: a broker of RocketMQ's wrote it.
    """

    version: DataVersion
    offsets: dict[str, dict[str, dict[int, int]]]
    resets: set[tuple[str, str, int]]
    forgotten: dict[str, int] | None
    is_there: bool
    is_foreign: bool


@dataclass(slots=True)
class DelayTable:
    """How far delay levels are, by level, and where the log ended then; `is_foreign` as in `ConsumerTable`."""

    version: DataVersion
    offsets: dict[int, int]
    log_end: int
    is_foreign: bool


def read_consumers(path: Path) -> ConsumerTable:
    """The file, or its spare copy; empty where there is none. StoreCorrupt: neither can be read."""
    return json_file.load_as(path, consumers_of)


def read_delays(path: Path) -> DelayTable:
    """As `read_consumers`."""
    return json_file.load_as(path, delays_of)


def consumers_of(raw: Mapping[str, Any]) -> ConsumerTable:
    """What the object of the first file says."""
    offsets: dict[str, dict[str, dict[int, int]]] = {}
    for key, queues in (raw.get("offsetTable") or {}).items():
        topic, _, group = key.partition("@")
        if topic and group:
            of_queues = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
            offsets.setdefault(group, {})[topic] = of_queues
    resets = {(group, topic, int(queue_id)) for group, topic, queue_id in raw.get("raymqResets") or ()}
    told = raw.get("raymqForgottenTopics")
    forgotten = None if told is None else {str(topic): int(place) for topic, place in told.items()}
    version, is_there = DataVersion.from_json(raw.get("dataVersion")), bool(raw)
    return ConsumerTable(version, offsets, resets, forgotten, is_there, is_there and told is None)


def delays_of(raw: Mapping[str, Any]) -> DelayTable:
    """What the object of the second file says."""
    offsets = {int(level): int(offset) for level, offset in (raw.get("offsetTable") or {}).items()}
    version = DataVersion.from_json(raw.get("dataVersion"))
    return DelayTable(version, offsets, int(raw.get("raymqLogEnd") or 0), bool(raw) and "raymqLogEnd" not in raw)
