"""The consumer groups of a broker: config/subscriptionGroup.json, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from raymq.storage.files import json_file
from raymq.storage.tables.settings_table import SettingsTable


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of one consumer group on one broker.

    `others` are RocketMQ's settings that have no effect here and are kept.
    """

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
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> Self:
        """Parse RocketMQ's JSON object."""
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
        return replace(known, others=json_file.foreign_fields(raw, known.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's JSON object."""
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


class GroupConfigs(SettingsTable[GroupConfig]):
    """The settings of all groups; see `SettingsTable`."""

    NUMBER: ClassVar = 3
    SETTING = GroupConfig
    KEY = "subscriptionGroupTable"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"forbiddenTable": {}}

    @property
    def forbidden(self) -> dict[str, dict[str, int]]:
        """Return the forbidden operations by group and topic: RocketMQ's bits, 1 = read."""
        table: dict[str, dict[str, int]] = self._beside["forbiddenTable"] or {}
        return table

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Replace the forbidden operations of a group on a topic, as `put_soon` does.

        0 removes the restriction.
        """
        of_group = {name: value for name, value in self.forbidden.get(group, {}).items() if name != topic}
        if bits:
            of_group[topic] = bits
        table = {name: topics for name, topics in self.forbidden.items() if name != group}
        self.replace_in_background("forbiddenTable", table | ({group: of_group} if of_group else {}))
