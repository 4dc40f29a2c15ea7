"""Withdraw a delayed message on each broker that may hold it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from raymq.actors.errors import NotRecallable, RayMQError, Timeout
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.actors.wire.commands.recall_commands import read_recalled, recall_command
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import ask, retry_while_unavailable
from raymq.client.results import SendResult
from raymq.storage.errors import no_answer_within

_SEPARATOR = ","


def encode_handles(handles: Sequence[RecallHandle]) -> str:
    """Encode the handles of a message as one text.

    The first handle names the message's broker. The others name brokers that earlier attempts may have reached.
    """
    return _SEPARATOR.join(handle.encode() for handle in handles)


def handles_of(sent: SendResult | str) -> list[RecallHandle]:
    """Return the handles of a result, or those that are encoded in a text.

    Raises:
        NotRecallable: the result has no handle.
        InvalidInput: the text is not a valid handle.
    """
    text = sent.recall_handle if isinstance(sent, SendResult) else sent
    if text is None:
        raise NotRecallable("the message has no deliver_at, or its time had passed when it was sent")
    if not isinstance(text, str):
        raise TypeError(f"recall takes a SendResult or a handle, not {type(text).__name__}")
    return [RecallHandle.decode(each) for each in text.split(_SEPARATOR)]


async def recall(mq: Connection, handles: Sequence[RecallHandle], timeout: float) -> RecallStatus:
    """Withdraw a message at the brokers that may have it, with retries.

    A repeated request gets the same response. Return DELIVERED if a copy was delivered, else WITHDRAWN if a copy was
    withdrawn, since no copy is left then, else UNKNOWN.

    Raises:
        BrokerUnavailable: a broker did not respond within `timeout` seconds.
    """

    async def recalled(handle: RecallHandle) -> RecallStatus:
        return read_recalled(await ask(mq, handle.topic, handle.broker, recall_command(handle.encode()), timeout))

    try:
        async with asyncio.timeout(timeout):
            statuses = await asyncio.gather(
                *(retry_while_unavailable(partial(recalled, each), timeout) for each in handles)
            )
    except TimeoutError as error:
        if isinstance(error, RayMQError):
            raise
        raise Timeout(", ".join(handle.broker for handle in handles), no_answer_within(timeout)) from error
    return next(
        (word for word in (RecallStatus.DELIVERED, RecallStatus.WITHDRAWN) if word in statuses), RecallStatus.UNKNOWN
    )
