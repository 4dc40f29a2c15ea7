"""Read RocketMQ's files of offsets: config/consumerOffset.json and config/delayOffset.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion
from raymq.storage.journal.journal_frames import check_encodable


@dataclass(slots=True)
class ConsumerOffsetTable:
    """The committed offsets of groups, as a file holds them.

    Attributes:
        offsets: by group, topic and queue id.
        resets: group, topic and queue id of the queues with a pending reset: the group has not yet moved to the new
            offset.
        forgotten: where the log ended at the deletion of each topic whose offsets were removed; None: the file does not
            record it, or there is no file.
        is_there: whether there is a file.
        is_foreign: a RocketMQ broker wrote it.
    """

    version: DataVersion
    offsets: dict[str, dict[str, dict[int, int]]]
    resets: set[tuple[str, str, int]]
    forgotten: dict[str, int] | None
    is_there: bool
    is_foreign: bool


@dataclass(slots=True)
class DelayOffsetTable:
    """The offsets of delay levels, as a file holds them.

    `offsets` are by level, `log_end` is where the log ended when they were committed, and `is_foreign` is as in
    `ConsumerOffsetTable`.
    """

    version: DataVersion
    offsets: dict[int, int]
    log_end: int
    is_foreign: bool


def read_consumer_offsets(path: Path) -> ConsumerOffsetTable:
    """Read the file of consumers' offsets or its spare copy; empty without a file.

    Raise StoreCorrupt if neither can be read.
    """
    return json_file.load_as(path, parse_consumer_offsets)


def read_delay_offsets(path: Path) -> DelayOffsetTable:
    """Read the file of delay levels' offsets, as `read_consumer_offsets` does."""
    return json_file.load_as(path, parse_delay_offsets)


def parse_consumer_offsets(raw: Mapping[str, Any]) -> ConsumerOffsetTable:
    """Parse the JSON object of config/consumerOffset.json; raise if it has another form (`json_file.DECODE_ERRORS`)."""
    offsets: dict[str, dict[str, dict[int, int]]] = {}
    for key, queues in (raw.get("offsetTable") or {}).items():
        topic, _, group = key.partition("@")
        if topic and group:
            of_queues = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
            offsets.setdefault(group, {})[topic] = of_queues
    resets = {(group, topic, int(queue_id)) for group, topic, queue_id in raw.get("raymqResets") or ()}
    check_encodable(offsets)
    places = raw.get("raymqForgottenTopics")
    forgotten = None if places is None else {str(topic): int(place) for topic, place in places.items()}
    version, is_there = DataVersion.from_json(raw.get("dataVersion")), bool(raw)
    return ConsumerOffsetTable(version, offsets, resets, forgotten, is_there, is_there and places is None)


def parse_delay_offsets(raw: Mapping[str, Any]) -> DelayOffsetTable:
    """Parse the JSON object of config/delayOffset.json; raise as `parse_consumer_offsets`."""
    offsets = {int(level): int(offset) for level, offset in (raw.get("offsetTable") or {}).items()}
    version = DataVersion.from_json(raw.get("dataVersion"))
    log_end = int(raw.get("raymqLogEnd") or 0)
    check_encodable((offsets, log_end))
    return DelayOffsetTable(version, offsets, log_end, bool(raw) and "raymqLogEnd" not in raw)
