"""Received messages for tests of what happens to them in a consumer."""

from __future__ import annotations

from raymq.actors.protocol import MessageQueue
from raymq.client.message import ReceivedMessage
from raymq.client.push.failures import CallFailure
from raymq.client.receipt import Receipt

QUEUE = MessageQueue("t", "b", 0)


def message(offset: int, key: str = "", queue: MessageQueue = QUEUE, receipt: Receipt | None = None) -> ReceivedMessage:
    made = ReceivedMessage(
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
    object.__setattr__(made, "receipt", receipt)
    return made


def failed(*levels: int | None) -> list[CallFailure | None]:
    """What a call's messages came to: of a delay level each that is to be tried again, None of one that succeeded."""
    return [
        None if level is None else CallFailure(level, "ValueError", f"ValueError: level {level}") for level in levels
    ]


def levels_of(failures: list[CallFailure | None]) -> list[int | None]:
    return [None if failure is None else failure.level for failure in failures]
