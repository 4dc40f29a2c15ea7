"""A message on its way from its sender into the log, and the detours that it may take.

A message that does not come to its queue at once waits elsewhere in the log: in the schedule topic, in the topic of
half messages, in the timer's. Whoever keeps such messages gives `Accepting.detours` a function that turns a draft of
its kind into what waits; nothing else of the way in has to know of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raymq.actors.errors import MessageIllegal
from raymq.storage.records import property_names as names

TIMER_NAMES = (names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC)


class MessageKind(enum.Enum):
    """What a sender wants of a message, beside that it is stored."""

    NORMAL = "comes at once"
    HALF = "comes when its transaction is committed"
    LEVEL = "comes after a delay level"
    TIMER = "comes at a time"


@dataclass(slots=True)
class Draft:
    """A message, or a batch, as its sender told it. A detour may change it before it is stored.

    Attributes:
        queue_id: below 0: any.
        properties: parsed; those of a batch are what its messages have in common.
        born_host: packed, 4 or 16 bytes address and 4 bytes port.
        max_reconsume_times: the sender's own; None takes the group's.
        default_topic, default_queues: the model of a topic that is not there yet, and the queues wanted of it.
        recall_handle: by which the sender may withdraw it; a detour sets it.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    born_timestamp_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    default_topic: str = ""
    default_queues: int = 0
    recall_handle: str | None = None

    @property
    def kind(self) -> MessageKind:
        """What is asked for; MessageIllegal as `delay_level`."""
        return kind_of(self.properties, self.reconsume_times)


def kind_of(properties: Mapping[str, str], reconsume_times: int) -> MessageKind:
    """What is asked for. A delay level wins over a time, and a half message that is retried is none any more."""
    level = delay_level(properties)
    if properties.get(names.TRAN_MSG, "").lower() == "true" and not (level > 0 and reconsume_times > 0):
        return MessageKind.HALF
    if level > 0:
        return MessageKind.LEVEL
    if names.TIMER_OUT_MS not in properties and any(name in properties for name in TIMER_NAMES):
        return MessageKind.TIMER
    return MessageKind.NORMAL


def delay_level(properties: Mapping[str, str]) -> int:
    """The delay level asked for; 0 and below: none. MessageIllegal if it is no number."""
    told = properties.get(names.DELAY)
    try:
        return 0 if told is None else int(told)
    except ValueError:
        raise MessageIllegal(names.DELAY, "a whole number", told) from None


#: Puts a draft where it waits, by changing it. Its topic and queue id are those that it shall come to.
Detour = Callable[[Draft], None]
