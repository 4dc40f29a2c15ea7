"""Received messages for tests of what happens to them in a consumer."""

from __future__ import annotations

from raymq.actors.protocol import MessageQueue
from raymq.client.message import ReceivedMessage

QUEUE = MessageQueue("t", "b", 0)


def message(offset: int, key: str = "") -> ReceivedMessage:
    return ReceivedMessage(
        topic="t",
        body=b"%d" % offset,
        tags=None,
        keys=[key] if key else [],
        properties={},
        system_properties={},
        message_id="",
        unique_key=None,
        queue=QUEUE,
        queue_offset=offset,
        physical_offset=offset,
        born_timestamp=0.0,
        store_timestamp=0.0,
        reconsume_times=0,
    )
