"""Represent a message on its way from its sender into the log.

A message that is not delivered to its queue at once is first stored in another topic: the schedule topic, the topic of
half messages, or the timer's. The service of such a topic has a function, a put message hook of the
`SendMessageProcessor`, which turns a draft of its kind into the message that waits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raymq.actors.errors import MessageIllegal
from raymq.storage.records import property_names as names

TIMER_NAMES = (names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC)


class MessageKind(enum.Enum):
    """When a message is to be delivered."""

    NORMAL = "delivered at once"
    HALF = "delivered when its transaction is committed"
    LEVEL = "delivered after a delay level"
    TIMER = "delivered at a chosen time"


@dataclass(slots=True)
class InboundMessage:
    """A message, or a batch, as its sender sent it.

    A hook may change it before it is stored.

    Attributes:
        queue_id: below 0 for any queue.
        properties: parsed; those of a batch are common to its messages.
        born_host: packed, 4 or 16 bytes address and 4 bytes port.
        max_reconsume_times: the sender's own; None takes the group's.
        default_topic, default_queues: the template of a topic that does not exist yet, and its requested number of
            queues.
        recall_handle: with it the sender may withdraw the message; a hook sets it.
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
        """Return the kind of the message. Raise MessageIllegal as `delay_level`."""
        return kind_of(self.properties, self.reconsume_times)


def kind_of(properties: Mapping[str, str], reconsume_times: int) -> MessageKind:
    """Return the kind of a message with these properties.

    A delay level overrides a delivery time. A half message that is retried is no longer a half message.
    """
    level = delay_level(properties)
    if properties.get(names.TRAN_MSG, "").lower() == "true" and not (level > 0 and reconsume_times > 0):
        return MessageKind.HALF
    if level > 0:
        return MessageKind.LEVEL
    if names.TIMER_OUT_MS not in properties and any(name in properties for name in TIMER_NAMES):
        return MessageKind.TIMER
    return MessageKind.NORMAL


def delay_level(properties: Mapping[str, str]) -> int:
    """Return the requested delay level; 0 or below means none.

    Raise MessageIllegal if it is not a number.
    """
    level = properties.get(names.DELAY)
    try:
        return 0 if level is None else int(level)
    except ValueError:
        raise MessageIllegal(names.DELAY, "a whole number", level) from None


#: Redirects a draft, in place, to the queue where it waits. Its topic and queue id are the final ones before the call.
PutMessageHook = Callable[[InboundMessage], None]
