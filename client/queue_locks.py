"""The locks of an ordered consumer: a queue belongs to one member at a time, by a lease that its broker keeps.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import lock as wire_lock
from raymq.client.connection import Connection
from raymq.client.fetching import address_of

#: Leases last 60 s (`raymq.actors.core.locks`) and are renewed this often.
RENEW_SECONDS = 20.0
_REQUEST_SECONDS = 3.0

_log = logging.getLogger(__name__)


class QueueLocks:
    """The locks of one member of one group."""

    def __init__(self, mq: Connection, client_id: str, group: str) -> None:
        self._mq = mq
        self._client_id = client_id
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Take, or renew, the locks of `queues`: those that are held now, and those that their broker refused.

        A queue in neither is of a broker that did not answer; its lease, if there was one, still runs.
        """
        answers = await asyncio.gather(*(self._lock(*each) for each in _by_broker(queues)))
        held = {queue for granted, _ in answers for queue in granted}
        return held, {queue for _, refused in answers for queue in refused}

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give the locks back; where that fails, the lease ends by itself."""
        await asyncio.gather(*(self._unlock(*each) for each in _by_broker(queues)))

    async def _lock(self, broker: str, queues: list[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        try:
            address = await address_of(self._mq, queues[0].topic, broker)
            command = wire_lock.lock_command(self._client_id, self._group, queues)
            held = set(wire_lock.read_locked(await self._mq.pool.request(address, command, _REQUEST_SECONDS)))
        except RayMQError as error:
            _log.debug("locks at %s: %s", broker, error)
            return set(), set()
        return held & set(queues), set(queues) - held

    async def _unlock(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            address = await address_of(self._mq, queues[0].topic, broker)
            command = wire_lock.unlock_command(self._client_id, self._group, queues)
            await self._mq.pool.request(address, command, _REQUEST_SECONDS)
        except RayMQError as error:
            _log.debug("unlock at %s: %s", broker, error)


def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    grouped: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        grouped[queue.broker].append(queue)
    return list(grouped.items())
