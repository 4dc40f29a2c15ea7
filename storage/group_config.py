"""The consumer groups of a broker: config/subscriptionGroup.json, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raymq.storage import json_file
from raymq.storage.errors import StoreError
from raymq.storage.json_file import DataVersion

_TABLES = ("dataVersion", "subscriptionGroupTable")


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One consumer group on one broker; `others` are settings of RocketMQ's that mean nothing here and are kept."""

    name: str
    retry_max_times: int = 16
    retry_queues: int = 1
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_orderly: bool = False
    consume_from_min_enable: bool = True
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> GroupConfig:
        """From RocketMQ's object."""
        known = cls(
            name=name,
            retry_max_times=int(raw.get("retryMaxTimes", 16)),
            retry_queues=int(raw.get("retryQueueNums", 1)),
            consume_enable=bool(raw.get("consumeEnable", True)),
            consume_broadcast_enable=bool(raw.get("consumeBroadcastEnable", True)),
            consume_orderly=bool(raw.get("consumeMessageOrderly", False)),
            consume_from_min_enable=bool(raw.get("consumeFromMinEnable", True)),
            consume_timeout_minutes=int(raw.get("consumeTimeoutMinute", 15)),
            attributes=dict(raw.get("attributes") or {}),
        )
        return replace(known, others=json_file.unknown(raw, known.to_json()))

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        return {
            "attributes": dict(self.attributes),
            "brokerId": 0,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": 1,
            **self.others,
        }


class GroupConfigs:
    """All groups, in memory and on disk; each change is durable when the call returns. One thread."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._writable = writable
        raw = json_file.load(path)
        self._others = {"forbiddenTable": {}} | {n: v for n, v in raw.items() if n not in _TABLES}
        self._version = DataVersion.from_json(raw.get("dataVersion"))
        table: dict[str, Any] = raw.get("subscriptionGroupTable") or {}
        self._table = {name: GroupConfig.from_json(name, group) for name, group in table.items()}

    def get(self, name: str) -> GroupConfig | None:
        return self._table.get(name)

    def all(self) -> dict[str, GroupConfig]:
        """A copy of the table."""
        return dict(self._table)

    @property
    def version(self) -> DataVersion:
        """Counts the changes."""
        return self._version

    @property
    def forbidden(self) -> dict[str, dict[str, int]]:
        """What groups may not do, by group and topic: RocketMQ's bits, 1 = read."""
        table: dict[str, dict[str, int]] = self._others["forbiddenTable"] or {}
        return table

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Replace what a group may not do with a topic; 0 lifts it."""
        of_group = {name: value for name, value in self.forbidden.get(group, {}).items() if name != topic}
        if bits:
            of_group[topic] = bits
        table = {name: topics for name, topics in self.forbidden.items() if name != group}
        others = {**self._others, "forbiddenTable": table | ({group: of_group} if of_group else {})}
        self._save(self._table, others)
        self._others = others

    def put(self, config: GroupConfig) -> None:
        """Create or replace."""
        self._save({**self._table, config.name: config}, self._others)

    def delete(self, name: str) -> bool:
        """Remove; whether it was there."""
        if name not in self._table:
            return False
        self._save({n: c for n, c in self._table.items() if n != name}, self._others)
        return True

    def _save(self, table: dict[str, GroupConfig], others: dict[str, Any]) -> None:
        if not self._writable:
            raise StoreError("the store was opened read-only")
        version = self._version.next()
        content = {
            "dataVersion": version.to_json(),
            **others,
            "subscriptionGroupTable": {name: config.to_json() for name, config in table.items()},
        }
        json_file.save(self._path, content)
        self._table, self._version = table, version
