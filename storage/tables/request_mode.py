"""Whether a group's members pull or pop a topic: config/messageRequestMode.json, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from raymq.storage.errors import InvalidInput
from raymq.storage.files import json_file
from raymq.storage.journal.journal_frames import check_encodable
from raymq.storage.journal.journaled_table import Fields, JournaledTable

PULL: Final = "PULL"
POP: Final = "POP"
#: The most pairs of group and topic that may have a mode of their own.
MAX_MODES: Final = 10_000
_TABLE: Final = "messageRequestModeMap"
#: The limits of a number of RocketMQ's.
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


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


class RequestModes(JournaledTable):
    """All request modes that were set.

    Events: [topic, group, mode, shared queues], [topic, group] for the default.

    One thread at a time; `get` may be called on any thread.
    """

    NUMBER: ClassVar = 7

    def __init__(self) -> None:
        self._modes: dict[tuple[str, str], RequestMode] = {}

    def get(self, topic: str, group: str) -> RequestMode:
        """Return the mode that was set, or PULL by default."""
        return self._modes.get((topic, group)) or RequestMode(topic, group)

    def put(self, mode: RequestMode) -> None:
        """Set a mode durably; this waits for the disk.

        A mode that equals the default is not stored.

        Raises:
            InvalidInput: too many modes are set, or the number of shared queues is out of range.
            StoreError: the store was opened read-only. StoreFull, StoreFailed: not done.
        """
        if not _INT_MIN <= mode.pop_share_queues <= _INT_MAX:
            raise InvalidInput("popShareQueueNum", "a number of 32 bits", mode.pop_share_queues)
        key = mode.topic, mode.group
        is_default = mode == RequestMode(*key)
        if not is_default and key not in self._modes and len(self._modes) >= MAX_MODES:
            limit = f"at most {MAX_MODES} groups and topics with a mode of their own"
            raise InvalidInput("mode", limit, mode.mode, remedy=f"set modes that are no longer needed to {PULL}")
        self.record_durably(key if is_default else (*key, mode.mode, mode.pop_share_queues))

    def replace_all(self, content: Mapping[str, Any]) -> Iterator[Fields]:
        """Return the events that give the table the content of RocketMQ's file."""
        modes = {(mode.topic, mode.group): mode for mode in read_modes(content)}
        yield from (key for key in self._modes if key not in modes)
        for mode in modes.values():
            yield mode.topic, mode.group, mode.mode, mode.pop_share_queues

    def to_json(self) -> str:
        """Return the content of RocketMQ's file. Any thread may call it."""
        topics: dict[str, list[str]] = {}
        for mode in self._modes.copy().values():
            text = f"{json_file.encode(mode.group)}:{json_file.encode(mode.to_json())}"
            topics.setdefault(mode.topic, []).append(text)
        rows = ",".join([f"{json_file.encode(topic)}:{{{','.join(each)}}}" for topic, each in topics.items()])
        return f'{{"{_TABLE}":{{{rows}}}}}'

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        topic, group, *mode = fields
        if mode:
            self._modes[topic, group] = RequestMode(topic, group, *mode)
        else:
            self._modes.pop((topic, group), None)

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each mode."""
        for mode in self._modes.copy().values():
            yield mode.topic, mode.group, mode.mode, mode.pop_share_queues


def read_modes(raw: Mapping[str, Any]) -> list[RequestMode]:
    """Return the modes in RocketMQ's file; raise one of `json_file.DECODE_ERRORS`."""
    table: Mapping[str, Any] = raw.get(_TABLE) or {}
    modes = [RequestMode.from_json(each) for groups in table.values() for each in groups.values()]
    check_encodable([(mode.topic, mode.group, mode.mode, mode.pop_share_queues) for mode in modes])
    return modes
