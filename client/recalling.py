"""Calling back a message that waits for its time."""

from __future__ import annotations

from raymq.actors.core.recall_handle import RecallHandle
from raymq.actors.errors import NotRecallable
from raymq.actors.protocol import RecallStatus
from raymq.actors.wire.recall import read_recalled, recall_command
from raymq.client.connection import Connection
from raymq.client.fetching import address_of, patiently
from raymq.client.results import SendResult


def handle_of(sent: SendResult | str) -> RecallHandle:
    """The handle of a result, or the one that is written there.

    Raises:
        NotRecallable: the result has none. InvalidInput: the text is none.
    """
    text = sent.recall_handle if isinstance(sent, SendResult) else sent
    if text is None:
        raise NotRecallable("the message has no deliver_at, or its time had passed when it was sent")
    if not isinstance(text, str):
        raise TypeError(f"recall takes a SendResult or a handle, not {type(text).__name__}")
    return RecallHandle.decode(text)


async def recall(mq: Connection, handle: RecallHandle, timeout: float) -> RecallStatus:
    """Ask the broker that has the message, again if it does not answer: the answer stays the same.

    Raises:
        BrokerUnavailable: it did not answer within `timeout` seconds.
    """

    async def ask() -> RecallStatus:
        address = await address_of(mq, handle.topic, handle.broker)
        return read_recalled(await mq.pool.request(address, recall_command(handle.encode()), timeout))

    return await patiently(ask, timeout)
