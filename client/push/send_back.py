"""Giving a failed message back to its broker, until the broker has it, or says that nothing can be made of it."""

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
from raymq.actors.wire.commands.send_back import DELAY_MS, SET_ASIDE, send_back_command
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.push.failures import CallFailure
from raymq.client.requests.asking import address_among

_REQUEST_SECONDS = 5.0
#: What follows a message in its queue cannot be committed before it is given back.
_LONGEST_WAIT_SECONDS = 5.0
#: A broker that answers so often with an error that has no meaning here will not answer anything else.
_MOST_REFUSALS = 100
#: Answers that stay the same however often it is asked: the message, its topic, its group or its permission is gone.
_DEFINITE = (NotFoundError, PermissionDenied, InvalidInput, StoreCorrupt)

_log = logging.getLogger(__name__)

#: Told of a message that will not come again: its queue, its offset, and why.
GivenUp = Callable[[MessageQueue, int, BaseException], None]


def _nobody_asks(_queue: MessageQueue, _offset: int, _error: BaseException) -> None:
    """What a message that is given up means to nobody."""


@dataclass(frozen=True, slots=True)
class SentBack:
    """What became of a message that was given back.

    Attributes:
        dead: it is in the dead letters.
        delay_seconds: how long it waits for its next try; None where it gets none, or its broker does not say.
        given_up: nothing can be made of it any more.
    """

    dead: bool = False
    delay_seconds: float | None = None
    given_up: bool = False


class SendBack:
    """One group's failed messages. Runs on the connection's event loop; how often one may come again, brokers know.

    Attributes:
        given_up: how many messages will not come again, and are no dead letters either.
    """

    def __init__(self, mq: Connection, group: str, on_given_up: GivenUp = _nobody_asks) -> None:
        self._mq = mq
        self._group = group
        self._on_given_up = on_given_up
        self.given_up = 0

    async def __call__(self, message: ReceivedMessage, failure: CallFailure) -> SentBack:
        """Comes back when the broker has stored it anew, or never can."""
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
                    if refusals >= _MOST_REFUSALS:
                        return self._give_up(message, error)
                _log.debug("send-back of %s: %s", message.message_id, error)
                await asyncio.sleep(backoff.next_delay())
            else:
                reason = answer.fields.get(SET_ASIDE)
                if reason is not None:
                    return self._give_up(message, RayMQError(str(reason)))
                dead = answer.fields.get("deadLetter") == "true" or level == STRAIGHT_TO_DLQ
                return SentBack(dead, None if dead else _seconds(answer.fields.get(DELAY_MS)))

    async def _ask(self, message: ReceivedMessage, command: Command) -> Command:
        """Its broker's answer, also if its topic was deleted; BrokerUnavailable if no route has that broker."""
        topics, broker = (message.queue.topic, retry_topic(self._group)), message.queue.broker
        try:
            address = await address_among(self._mq, topics, broker)
        except TopicNotFound as error:
            raise BrokerUnavailable(broker, str(error)) from None
        return await self._mq.pool.request(address, command, _REQUEST_SECONDS)

    def _give_up(self, message: ReceivedMessage, error: RayMQError) -> SentBack:
        """Tell that it will not come again: what follows it in its queue goes on."""
        self.given_up += 1
        _log.error("%s of group %s will not come again: %s", message.message_id, self._group, error)
        self._on_given_up(message.queue, message.queue_offset, error)
        return SentBack(given_up=True)


def _seconds(milliseconds: object) -> float | None:
    """A broker's own number in seconds; None for what is none."""
    text = str(milliseconds)
    return int(text) / 1000 if text.isascii() and text.isdecimal() else None
