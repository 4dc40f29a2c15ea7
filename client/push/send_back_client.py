"""Send failed messages back to their brokers, until the broker has stored or refused them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    BrokerUnavailable,
    InvalidInput,
    NotFoundError,
    PermissionDenied,
    RayMQError,
    StoreCorrupt,
    StoreError,
    TopicNotFound,
)
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import STRAIGHT_TO_DLQ, MessageQueue
from raymq.actors.wire.commands.send_back_commands import DELAY_MS, QUARANTINE_REASON, send_back_command
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.push.failures import CallFailure
from raymq.client.requests.broker_requests import broker_address_via

_REQUEST_SECONDS = 5.0
#: The longest pause between attempts. Messages after it in its queue cannot be committed before it is sent back.
_LONGEST_WAIT_SECONDS = 5.0
#: After this many errors without a meaning here, a broker's response will not change.
_MAX_REFUSALS = 100
#: Errors that a retry does not change: the message, its topic, its group or its permission is gone.
_DEFINITE = (NotFoundError, PermissionDenied, InvalidInput, StoreCorrupt)

_log = logging.getLogger(__name__)

#: Called with a message that will not be delivered again: its queue, its offset and the error.
OnGivenUp = Callable[[MessageQueue, int, BaseException], None]


def _ignore_given_up(_queue: MessageQueue, _offset: int, _error: BaseException) -> None:
    """Ignore a message that is given up."""


@dataclass(frozen=True, slots=True)
class SendBackResult:
    """The outcome of sending a message back.

    Attributes:
        dead: whether the message is in the dead letters.
        delay_seconds: how long it waits for its next try. None if there is none, or if the broker does not report it.
        given_up: whether the message cannot be delivered again.
    """

    dead: bool = False
    delay_seconds: float | None = None
    given_up: bool = False


class SendBackClient:
    """The send-backs of one group. Runs on the connection's event loop.

    The brokers keep the limit of redeliveries.

    Attributes:
        given_up: how many messages will not be delivered again and are not dead letters either.
    """

    def __init__(self, mq: Connection, group: str, on_given_up: OnGivenUp = _ignore_given_up) -> None:
        self._mq = mq
        self._group = group
        self._on_given_up = on_given_up
        self.given_up = 0

    async def __call__(self, message: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        """Send a message back. Return when the broker has stored it, or never can."""
        level, place = failure.level, message.physical_offset
        command = send_back_command(self._group, message.topic, place, message.message_id, level, None, failure.reason)
        backoff = Backoff(first=0.1, cap=_LONGEST_WAIT_SECONDS)
        refusals = 0
        while True:
            try:
                answer = await self._ask(message, command)
            except _DEFINITE as error:
                return self._give_up(message, error)
            except RayMQError as error:
                if not (error.retriable or isinstance(error, StoreError)):
                    refusals += 1
                    if refusals >= _MAX_REFUSALS:
                        return self._give_up(message, error)
                _log.debug("send-back of %s: %s", message.message_id, error)
                await asyncio.sleep(backoff.next_delay())
            else:
                reason = answer.fields.get(QUARANTINE_REASON)
                if reason is not None:
                    return self._give_up(message, RayMQError(str(reason)))
                dead = answer.fields.get("deadLetter") == "true" or level == STRAIGHT_TO_DLQ
                return SendBackResult(dead, None if dead else _seconds(answer.fields.get(DELAY_MS)))

    async def _ask(self, message: ReceivedMessage, command: Command) -> Command:
        """Return the response of the message's broker, also if its topic was deleted.

        Raise BrokerUnavailable if no route contains that broker.
        """
        topics, broker = (message.queue.topic, retry_topic(self._group)), message.queue.broker
        try:
            address = await broker_address_via(self._mq, topics, broker)
        except TopicNotFound as error:
            raise BrokerUnavailable(broker, str(error)) from None
        return await self._mq.pool.request(address, command, _REQUEST_SECONDS)

    def _give_up(self, message: ReceivedMessage, error: RayMQError) -> SendBackResult:
        """Report that a message will not be delivered again.

        The messages after it in its queue go on.
        """
        self.given_up += 1
        _log.error("%s of group %s will not come again: %s", message.message_id, self._group, error)
        self._on_given_up(message.queue, message.queue_offset, error)
        return SendBackResult(given_up=True)


def _seconds(milliseconds: object) -> float | None:
    """Convert a broker's number of milliseconds to seconds.

    Return None if the value is not a number.
    """
    text = str(milliseconds)
    return int(text) / 1000 if text.isascii() and text.isdecimal() else None
