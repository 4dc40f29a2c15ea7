"""Whether a group's members pull or pop a topic: config/messageRequestMode.json, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raymq.storage.errors import InvalidInput, StoreError
from raymq.storage.files import json_file

PULL: Final = "PULL"
POP: Final = "POP"
#: The most pairs of group and topic that may have a mode of their own.
MAX_MODES: Final = 10_000
_TABLE: Final = "messageRequestModeMap"


@dataclass(frozen=True, slots=True)
class RequestMode:
    """The request mode of a group in a topic: PULL or POP.

    PULL: each queue is assigned to one member. POP: members take messages from all queues under a lease of the broker.
    `pop_share_queues` is the number of other members' queues that a member also reads in RocketMQ; it is kept and not
    used here.
    """

    topic: str
    group: str
    mode: str = PULL
    pop_share_queues: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RequestMode:
        """Parse RocketMQ's JSON object."""
        return cls(
            str(raw["topic"]), str(raw["consumerGroup"]), str(raw["mode"]), int(raw.get("popShareQueueNum") or 0)
        )

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's JSON object."""
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.pop_share_queues,
            "topic": self.topic,
        }


class RequestModes:
    """All request modes that were set, in memory and on disk.

    One thread, except for `put`: any thread may call it, one at a time.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._writable = writable
        self._modes = json_file.load_as(path, _read)
        #: The encoded form of each mode, so that a change costs little even if there are many others.
        self._texts: dict[RequestMode, str] = {}
        self._last_saved: bytes | None = None

    def get(self, topic: str, group: str) -> RequestMode:
        """Return the mode that was set, or PULL by default."""
        return self._modes.get((topic, group)) or RequestMode(topic, group)

    def put(self, mode: RequestMode) -> None:
        """Set a mode durably; this waits for the disk.

        A mode that equals the default is not stored.

        Raises:
            InvalidInput: too many modes are set.
            StoreError: the store was opened read-only. StoreFull, StoreFailed: not done.
        """
        if not self._writable:
            raise StoreError("the store was opened read-only")
        key = mode.topic, mode.group
        others = {name: each for name, each in self._modes.items() if name != key}
        modes = others if mode == RequestMode(*key) else {**others, key: mode}
        if len(modes) > max(MAX_MODES, len(self._modes)):
            limit = f"at most {MAX_MODES} groups and topics with a mode of their own"
            raise InvalidInput("mode", limit, mode.mode, remedy=f"set modes that are no longer needed to {PULL}")
        content = self._encoded(modes)
        json_file.save_encoded(self._path, content, _read, self._last_saved)
        self._last_saved, self._modes = content, modes

    def _encoded(self, modes: Mapping[tuple[str, str], RequestMode]) -> bytes:
        texts: dict[RequestMode, str] = {}
        topics: dict[str, list[str]] = {}
        for mode in modes.values():
            text = self._texts.get(mode) or f"{json_file.encode(mode.group)}:{json_file.encode(mode.to_json())}"
            texts[mode] = text
            topics.setdefault(mode.topic, []).append(text)
        self._texts = texts
        rows = ",".join([f"{json_file.encode(topic)}:{{{','.join(each)}}}" for topic, each in topics.items()])
        return f'{{"{_TABLE}":{{{rows}}}}}'.encode()


def _read(raw: Mapping[str, Any]) -> dict[tuple[str, str], RequestMode]:
    table: Mapping[str, Any] = raw.get(_TABLE) or {}
    modes = [RequestMode.from_json(each) for groups in table.values() for each in groups.values()]
    return {(mode.topic, mode.group): mode for mode in modes}
