"""Giving a failed message back to its broker, until the broker has it."""

from __future__ import annotations

import asyncio
import logging

from raymq.actors.core.backoff import Backoff
from raymq.actors.core.retry import STRAIGHT_TO_DLQ
from raymq.actors.errors import MessageExpired, MessageNotFound, RayMQError
from raymq.actors.wire.send_back import send_back_command
from raymq.client.connection import Connection
from raymq.client.fetching import address_of
from raymq.client.message import ReceivedMessage

_REQUEST_SECONDS = 5.0

_log = logging.getLogger(__name__)


class SendBack:
    """One group's failed messages. Runs on the connection's event loop; how often one may come again, brokers know."""

    def __init__(self, mq: Connection, group: str) -> None:
        self._mq = mq
        self._group = group

    async def __call__(self, message: ReceivedMessage, level: int) -> bool:
        """Comes back when the broker has stored it anew, or never can; True if it went to the dead letters."""
        command = send_back_command(
            self._group, message.topic, message.physical_offset, message.message_id, level, None
        )
        backoff = Backoff(first=0.1, cap=1.0)  # what follows it in its queue cannot be committed meanwhile
        while True:
            try:
                address = await address_of(self._mq, message.queue.topic, message.queue.broker)
                answer = await self._mq.pool.request(address, command, _REQUEST_SECONDS)
                return answer.fields.get("deadLetter") == "true" or level == STRAIGHT_TO_DLQ
            except (MessageExpired, MessageNotFound) as error:
                _log.warning("%s cannot be sent back: %s", message.message_id, error)
                return False
            except RayMQError as error:
                _log.debug("send-back of %s: %s", message.message_id, error)
                await asyncio.sleep(backoff.next_delay())
