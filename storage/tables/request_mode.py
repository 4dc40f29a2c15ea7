"""How the members of a group ask for a topic's messages: config/messageRequestMode.json, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import StoreError
from raymq.storage.files import json_file

PULL: Final = "PULL"
POP: Final = "POP"
_TABLE: Final = "messageRequestModeMap"


@dataclass(frozen=True, slots=True)
class RequestMode:
    """PULL: each queue belongs to one member. POP: members take from all queues what the broker lends them.

    `pop_share_queues` is how many members' queues one asks besides its own in RocketMQ; kept, and not used here.
    """

    topic: str
    group: str
    mode: str = PULL
    pop_share_queues: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RequestMode:
        """From RocketMQ's object."""
        return cls(
            str(raw["topic"]), str(raw["consumerGroup"]), str(raw["mode"]), int(raw.get("popShareQueueNum") or 0)
        )

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's object."""
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.pop_share_queues,
            "topic": self.topic,
        }


class RequestModes:
    """All that were set, in memory and on disk; each change is durable when the call returns. One thread."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._writable = writable
        self._modes = json_file.load_as(path, _read)

    def get(self, topic: str, group: str) -> RequestMode:
        """What was set, else PULL."""
        return self._modes.get((topic, group)) or RequestMode(topic, group)

    def put(self, mode: RequestMode) -> None:
        """Set one."""
        if not self._writable:
            raise StoreError("the store was opened read-only")
        modes = {**self._modes, (mode.topic, mode.group): mode}
        table: dict[str, dict[str, Any]] = {}
        for each in modes.values():
            table.setdefault(each.topic, {})[each.group] = each.to_json()
        json_file.save(self._path, {_TABLE: table}, _read)
        self._modes = modes


def _read(raw: Mapping[str, Any]) -> dict[tuple[str, str], RequestMode]:
    table: Mapping[str, Any] = raw.get(_TABLE) or {}
    modes = [RequestMode.from_json(each) for groups in table.values() for each in groups.values()]
    return {(mode.topic, mode.group): mode for mode in modes}
