"""Received messages and call failures for tests of consumers."""

from __future__ import annotations

from raymq.actors.protocol import MessageQueue
from raymq.client.message import ReceivedMessage
from raymq.client.push.failures import CallFailure
from raymq.client.receipt import Receipt

QUEUE = MessageQueue("t", "b", 0)


def message(offset: int, key: str = "", queue: MessageQueue = QUEUE, receipt: Receipt | None = None) -> ReceivedMessage:
    received = ReceivedMessage(
        topic="t",
        body=b"%d" % offset,
        tags=None,
        keys=[key] if key else [],
        properties={},
        system_properties={},
        message_id="",
        unique_key=None,
        queue=queue,
        queue_offset=offset,
        physical_offset=offset,
        born_timestamp=0.0,
        store_timestamp=0.0,
        reconsume_times=0,
    )
    object.__setattr__(received, "receipt", receipt)
    return received


def call_failures(*levels: int | None) -> list[CallFailure | None]:
    """Return the failures of a call's messages: one per delay level, None for a success."""
    return [
        None if level is None else CallFailure(level, "ValueError", f"ValueError: level {level}") for level in levels
    ]


def levels_of(failures: list[CallFailure | None]) -> list[int | None]:
    return [None if failure is None else failure.level for failure in failures]
