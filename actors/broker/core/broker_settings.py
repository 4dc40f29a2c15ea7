"""A broker's settings under RocketMQ's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.server_settings import Settings
from raymq.storage.config import StoreConfig
from raymq.storage.log.retention import Retention
from raymq.storage.paths import Paths
from raymq.storage.tables.kept_settings import delete_hour_of, hours_of, kept_of_broker, permission_of


def broker_settings(
    core: BrokerCore, *, cluster: str, address: str, name_servers: Sequence[str], auto_create_topics: bool
) -> Settings:
    """What can be read, and what can be changed while the broker runs: when log files are deleted, and whether it
    takes messages.
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
    permission = {"brokerPermission": ("6", lambda value: core.topics.permit(permission_of(value)))}
    return Settings(Paths(store.directory).settings, fixed, _changeable(store) | permission, read=kept_of_broker)


def kept_retention(directory: Path, config: StoreConfig) -> Retention:
    """The rules of retention that hold in a broker's directory: what was changed of those of `config` is kept there.

    Raises:
        StoreCorrupt: it cannot be read.
    """
    rules = _Rules(Retention(config.retention_hours, config.delete_at_hour))
    Settings(Paths(directory).settings, {}, _changeable(rules), read=kept_of_broker)
    return rules.retention


class _Ruled(Protocol):
    """What has rules of retention."""

    retention: Retention


@dataclass(slots=True)
class _Rules:
    """The rules of a store that is not open."""

    retention: Retention


def _changeable(of: _Ruled) -> dict[str, tuple[str, Callable[[str], None]]]:
    """The settings by which the rules are changed."""

    def keep_hours(value: str) -> None:
        of.retention = replace(of.retention, hours=hours_of(value))

    def delete_at(value: str) -> None:
        of.retention = replace(of.retention, delete_at_hour=delete_hour_of(value))

    return {
        "fileReservedTime": (f"{of.retention.hours:g}", keep_hours),
        "deleteWhen": (of.retention.delete_at_hour, delete_at),
    }
