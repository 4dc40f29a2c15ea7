"""Map a broker's settings to RocketMQ's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.server_settings import ServerSettings
from raymq.storage.config import StoreConfig
from raymq.storage.log.retention import Retention
from raymq.storage.state_opening import read_tables
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.dynamic_config import parse_delete_hour, parse_permission, parse_retention_hours


def broker_settings(
    core: BrokerCore, *, cluster: str, address: str, name_servers: Sequence[str], auto_create_topics: bool
) -> ServerSettings:
    """Return a broker's settings, and which of them can change at runtime.

    All of them can be read. The retention rules (`fileReservedTime`, `deleteWhen`) and `brokerPermission` can be
    changed while the broker runs.
    """
    store = core.store
    config = store.config
    host, _, port = address.rpartition(":")

    fixed = {
        "brokerName": core.name,
        "brokerClusterName": cluster,
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "brokerIP1": host,
        "brokerIP2": host,
        "listenPort": port,
        "namesrvAddr": ";".join(name_servers),
        "autoCreateTopicEnable": str(auto_create_topics).lower(),
        "autoCreateSubscriptionGroup": "true",
        "storePathRootDir": str(store.directory),
        "storePathCommitLog": str(store.directory / "commitlog"),
        "mappedFileSizeCommitLog": str(config.commitlog_file_bytes),
        "mappedFileSizeConsumeQueue": str(config.consume_queue_file_entries * 20),
        "maxHashSlotNum": str(config.index_slots),
        "maxIndexNum": str(config.index_entries),
        "maxMessageSize": str(config.max_message_bytes),
        "messageDelayLevel": config.delay_levels,
        "flushDiskType": f"{config.flush.upper()}_FLUSH",
        "flushIntervalCommitLog": str(config.flush_interval_ms),
        "diskMaxUsedSpaceRatio": "75",
        "clientCallbackExecutorThreads": str(os.cpu_count()),
    }
    permission = {"brokerPermission": ("6", lambda value: core.topics.set_permission(parse_permission(value)))}
    return ServerSettings(store.tables.settings, fixed, _changeable(store) | permission)


def load_retention(directory: Path, config: StoreConfig) -> Retention:
    """Return the retention rules in force for a broker's directory.

    These are the rules of `config`, overridden by the changes that are stored in the directory.

    Raises:
        StoreCorrupt, StoreBusy, StoreFailed: the tables cannot be read.
    """
    rules = _RetentionOnly(Retention(config.retention_hours, config.delete_at_hour))
    ServerSettings(read_tables(StorePaths(directory)).settings, {}, _changeable(rules))
    return rules.retention


class _HasRetention(Protocol):
    """An object that has retention rules."""

    retention: Retention


@dataclass(slots=True)
class _RetentionOnly:
    """The retention rules of a store that is not open."""

    retention: Retention


def _changeable(of: _HasRetention) -> dict[str, tuple[str, Callable[[str], None]]]:
    """Return the settings that change the retention rules of `of`.

    Each entry is name -> (value now, function that applies a new value).
    """

    def keep_hours(value: str) -> None:
        of.retention = replace(of.retention, hours=parse_retention_hours(value))

    def delete_at(value: str) -> None:
        of.retention = replace(of.retention, delete_at_hour=parse_delete_hour(value))

    return {
        "fileReservedTime": (f"{of.retention.hours:g}", keep_hours),
        "deleteWhen": (of.retention.delete_at_hour, delete_at),
    }
