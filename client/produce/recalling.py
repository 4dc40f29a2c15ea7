"""Calling back a message that waits for its time, on each broker that may hold it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raymq.actors.errors import NotRecallable, RayMQError, Timeout
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.actors.wire.commands.recall import read_recalled, recall_command
from raymq.client.connection import Connection
from raymq.client.requests.asking import ask, patiently
from raymq.client.results import SendResult
from raymq.storage.errors import no_answer_within

_SEPARATOR = ","


def encode_handles(handles: Sequence[RecallHandle]) -> str:
    """One text of the handles of a message: its broker's first, then those that a try before may have reached."""
    return _SEPARATOR.join(handle.encode() for handle in handles)


def handles_of(sent: SendResult | str) -> list[RecallHandle]:
    """The handles of a result, or those that are written there.

    Raises:
        NotRecallable: the result has none. InvalidInput: the text is none.
    """
    text = sent.recall_handle if isinstance(sent, SendResult) else sent
    if text is None:
        raise NotRecallable("the message has no deliver_at, or its time had passed when it was sent")
    if not isinstance(text, str):
        raise TypeError(f"recall takes a SendResult or a handle, not {type(text).__name__}")
    return [RecallHandle.decode(each) for each in text.split(_SEPARATOR)]


async def recall(mq: Connection, handles: Sequence[RecallHandle], timeout: float) -> RecallStatus:
    """Ask the brokers that have the message, again where one does not answer: the answer stays the same.

    DELIVERED if a copy was delivered, else WITHDRAWN if one was withdrawn: then all are.

    Raises:
        BrokerUnavailable: one did not answer within `timeout` seconds.
    """

    async def recalled(handle: RecallHandle) -> RecallStatus:
        return read_recalled(await ask(mq, handle.topic, handle.broker, recall_command(handle.encode()), timeout))

    try:
        async with asyncio.timeout(timeout):
            told = await asyncio.gather(*(patiently(lambda each=each: recalled(each), timeout) for each in handles))  # type: ignore[misc]
    except TimeoutError as error:
        if isinstance(error, RayMQError):
            raise
        raise Timeout(", ".join(handle.broker for handle in handles), no_answer_within(timeout)) from error
    return next(
        (word for word in (RecallStatus.DELIVERED, RecallStatus.WITHDRAWN) if word in told), RecallStatus.UNKNOWN
    )
