"""The store directories in tests/golden/, written by a RocketMQ broker, and RocketMQ's results of reading them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from raymq.storage.config import StoreConfig
from raymq.storage.records.record import Record
from raymq.storage.store import Store

FOLDER = Path(__file__).resolve().parent / "golden"
NAMES = ("clean", "killed", "delayed", "trimmed", "rebuilt")
#: A time in ms after all store timestamps of the directories.
FOREVER_MS = (1 << 63) - 1

Answers = dict[str, Any]


def record_fields(record: Record) -> Answers:
    """Return a record's fields as the Java programs print them, without body and properties."""
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "born_timestamp": record.born_timestamp_ms,
        "born_host": record.born_host,
        "store_timestamp": record.store_timestamp_ms,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "message_id": record.message_id,
    }


@cache
def answers(name: str) -> Answers:
    """Return RocketMQ's results for a directory; do not change the shared value."""
    loaded: Answers = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return loaded


def unpack(name: str, folder: Path) -> Path:
    """Unpack a fresh copy of a directory into `folder`, and return its path."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # Python 3.11.0 to 3.11.3 (as in Debian 12) has no filters; the archives can be trusted
            archive.extractall(folder)
    return folder / name


def config(name: str) -> StoreConfig:
    """Return the settings of the broker that wrote a directory."""
    settings = answers(name)["settings"]
    return StoreConfig(
        commitlog_file_bytes=settings["mappedFileSizeCommitLog"],
        consume_queue_file_entries=settings["mappedFileSizeConsumeQueue"] // 20,
        index_slots=settings["maxHashSlotNum"],
        index_entries=settings["maxIndexNum"],
        delay_levels=settings["messageDelayLevel"],
        store_host=settings["storeHost"],
        disk_refuse_ratio=1.0,
    )


def fingerprints(directory: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file of a directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found[path.relative_to(directory).as_posix()] = (len(content), hashlib.sha256(content).hexdigest())
    return found


def own_unique_key(message: Answers) -> str | None:
    """Return the unique key that the message's sender knows.

    A RocketMQ batch appends its own properties to each member's, so that the batch's UNIQ_KEY is the last one.
    """
    repeated = [value for name, value in message.get("repeated_properties", []) if name == "UNIQ_KEY"]
    key: str | None = repeated[0] if repeated else message["unique_key"]
    return key


def keys_of(message: Answers) -> set[str]:
    """Return every key by which RocketMQ or RayMQ finds the message."""
    keys = set(message["properties"].get("KEYS", "").split(" "))
    keys |= {message["unique_key"] or "", own_unique_key(message) or ""}
    return keys - {""}


def is_found_by(store: Store, key: str, message: Answers) -> bool:
    """Return whether a query by the key returns the message, perhaps among others."""
    found = store.query(message["topic"], key, 0, FOREVER_MS, 1000)
    return message["physical_offset"] in {record.physical_offset for record in found}
