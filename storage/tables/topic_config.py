"""The topics of a broker: config/topics.json, in RocketMQ's form."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from raymq.storage.files import json_file
from raymq.storage.files.json_file import DataVersion
from raymq.storage.tables.settings_table import SettingsTable

PERM_READ = 4
PERM_WRITE = 2

#: The key of a topic's id in the file; RocketMQ has no such field and ignores it.
_ID: Final = "raymqTopicId"
_ID_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic on one broker.

    Attributes:
        perm: a sum of PERM_READ and PERM_WRITE (and RocketMQ's 1 = inherit).
        attributes: RocketMQ's, such as "message.type": "FIFO".
        others: RocketMQ's settings that have no effect here and are kept.
        topic_id: distinguishes topics of the same name: a topic that was deleted and recreated has another id. It is
            assigned by the table and is not a setting: topics that differ only in it are equal. Empty for a topic that
            RocketMQ made.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    topic_id: str = field(default="", compare=False)

    @classmethod
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> Self:
        """Parse RocketMQ's JSON object."""
        known = cls(
            name=name,
            read_queues=int(raw.get("readQueueNums", 16)),
            write_queues=int(raw.get("writeQueueNums", 16)),
            perm=int(raw.get("perm", PERM_READ | PERM_WRITE)),
            order=bool(raw.get("order", False)),
            attributes=dict(raw.get("attributes") or {}),
            topic_id=str(raw.get(_ID) or ""),
        )
        return replace(known, others=json_file.foreign_fields(raw, known.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's JSON object."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": 0,
            "writeQueueNums": self.write_queues,
            **({_ID: self.topic_id} if self.topic_id else {}),
            **self.others,
        }


class TopicConfigs(SettingsTable[TopicConfig]):
    """The settings of all topics; see `SettingsTable`.

    A new topic is assigned an id, which it keeps whatever is changed.
    """

    NUMBER: ClassVar = 2
    SETTING = TopicConfig
    KEY = "topicConfigTable"

    def put_soon(self, *settings: TopicConfig) -> None:
        """Create or replace topics as `SettingsTable.put_soon`; their `topic_id` is ignored."""
        super().put_soon(*[replace(each, topic_id=self._id_of(each.name)) for each in settings])

    def _id_of(self, name: str) -> str:
        known = self.get(name)
        return secrets.token_hex(_ID_BYTES) if known is None else known.topic_id

    def forget_topic(self, topic: str, log_end: int) -> None:  # noqa: ARG002 - the topic's settings have no position
        """Remove the settings of a deleted topic."""
        if self._table.pop(topic, None) is not None:
            self.version = DataVersion(self.version.counter + 1, self.version.timestamp_ms, self.version.state_version)
            self._note([topic], self.version.counter)
