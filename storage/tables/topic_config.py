"""The topics of a broker: config/topics.json, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from raymq.storage.files import json_file
from raymq.storage.tables.settings_table import SettingsTable

PERM_READ = 4
PERM_WRITE = 2


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic on one broker.

    Attributes:
        perm: a sum of PERM_READ and PERM_WRITE (and RocketMQ's 1 = inherit).
        attributes: RocketMQ's, such as "message.type": "FIFO".
        others: settings of RocketMQ's that mean nothing here and are kept as they are.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> Self:
        """From RocketMQ's object."""
        known = cls(
            name=name,
            read_queues=int(raw.get("readQueueNums", 16)),
            write_queues=int(raw.get("writeQueueNums", 16)),
            perm=int(raw.get("perm", PERM_READ | PERM_WRITE)),
            order=bool(raw.get("order", False)),
            attributes=dict(raw.get("attributes") or {}),
        )
        return replace(known, others=json_file.unknown(raw, known.to_json()))

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": 0,
            "writeQueueNums": self.write_queues,
            **self.others,
        }


class TopicConfigs(SettingsTable[TopicConfig]):
    """All topics; see `SettingsTable`."""

    SETTING = TopicConfig
    KEY = "topicConfigTable"
