"""The topics of a broker: config/topics.json, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raymq.storage import json_file
from raymq.storage.errors import StoreError
from raymq.storage.json_file import DataVersion

PERM_READ = 4
PERM_WRITE = 2
_TABLES = ("dataVersion", "topicConfigTable")


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
    def from_json(cls, name: str, raw: Mapping[str, Any]) -> TopicConfig:
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


class TopicConfigs:
    """All topics, in memory and on disk; each change is durable when the call returns. One thread."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._writable = writable
        raw = json_file.load(path)
        self._others = {name: value for name, value in raw.items() if name not in _TABLES}
        self._version = DataVersion.from_json(raw.get("dataVersion"))
        self._table = {n: TopicConfig.from_json(n, t) for n, t in (raw.get("topicConfigTable") or {}).items()}

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def all(self) -> dict[str, TopicConfig]:
        """A copy of the table."""
        return dict(self._table)

    @property
    def version(self) -> DataVersion:
        """Counts the changes."""
        return self._version

    def put(self, *configs: TopicConfig) -> None:
        """Create or replace, all in one change."""
        self._save(self._table | {config.name: config for config in configs})

    def delete(self, name: str) -> bool:
        """Remove; whether it was there."""
        if name not in self._table:
            return False
        self._save({n: c for n, c in self._table.items() if n != name})
        return True

    def _save(self, table: dict[str, TopicConfig]) -> None:
        if not self._writable:
            raise StoreError("the store was opened read-only")
        version = self._version.next()
        content = {
            "dataVersion": version.to_json(),
            **self._others,
            "topicConfigTable": {name: config.to_json() for name, config in table.items()},
        }
        json_file.save(self._path, content)
        self._table, self._version = table, version
