"""The locks of an ordered consumer: a queue belongs to one member at a time, by a lease that its broker keeps.

Runs on the connection's event loop, `may_begin` apart. How long a lock is trusted, `lock_table` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.request_limits import MAX_LOCKED
from raymq.actors.supervision import is_meant
from raymq.actors.wire.commands import lock as wire_lock
from raymq.client.connection import Connection
from raymq.client.members.lock_table import Grant, LockTable
from raymq.client.requests.asking import address_among, ask_among
from raymq.storage.clock import boottime

_REQUEST_SECONDS = 3.0

_log = logging.getLogger(__name__)


class LocksAtBrokers:
    """The locks of one member of one group. It is the gate of the calls that `Delivery` begins."""

    def __init__(self, mq: Connection, client_id: str, group: str, failed: Callable[[BaseException], object]) -> None:
        """`failed` is told what nobody expected of a renewal; the next one is asked for in its time."""
        self._mq = mq
        self._failed = failed
        self._client_id = client_id
        self._group = group
        self._table = LockTable(boottime)
        self._wanted = asyncio.Event()
        self._renewals: dict[str, asyncio.Task[None]] = {}
        #: Any thread: whether a call with messages of a queue may begin now.
        self.may_begin = self._table.may_begin

    def want(self, queue: MessageQueue) -> None:
        """A call waits for its queue's lock; `keep` tells when it may begin."""
        self._table.want(queue)
        self._wanted.set()

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Take the locks of `queues`: those that are held now."""
        answers = await asyncio.gather(*(self._ask(*each) for each in _by_broker(queues)))
        held = {queue: grant for grants in answers if grants is not None for queue, grant in grants.items()}
        for queue, grant in held.items():
            self._table.granted(queue, grant)
        return set(held)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give the locks back; where that fails, the lease ends by itself."""
        for queue in (given := list(queues)):
            self._table.forget(queue)
        await asyncio.gather(*(self._unlock(*each) for each in _by_broker(given)))

    async def keep(
        self,
        owned: Callable[[], Collection[MessageQueue]],
        heard: Callable[[set[MessageQueue], set[MessageQueue]], None],
    ) -> None:
        """Renew the locks of the queues in `owned()`, without end.

        Args:
            heard: told which locks were renewed, so that their calls may begin, and which are lost.
        """
        try:
            while True:
                if ended := self._table.ended(owned()):
                    heard(set(), ended)
                due = self._table.due(owned())
                self._table.tried(due)
                for broker, queues in _by_broker(due):
                    if broker not in self._renewals:  # one that hangs holds up no other
                        task = asyncio.get_running_loop().create_task(self._renew(broker, queues, heard))
                        self._renewals[broker] = task
                        task.add_done_callback(lambda _, broker=broker: self._renewals.pop(broker))  # type: ignore[misc]
                self._wanted.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._table.seconds_until_due(owned())):
                        await self._wanted.wait()
        finally:
            for task in self._renewals.values():
                task.cancel()

    async def _renew(
        self,
        broker: str,
        queues: list[MessageQueue],
        heard: Callable[[set[MessageQueue], set[MessageQueue]], None],
    ) -> None:
        try:
            grants = await self._ask(broker, queues)
            if grants is not None:
                kept = {queue for queue, grant in grants.items() if self._table.granted(queue, grant)}
                heard(kept, set(queues) - kept)
        except BaseException as error:
            if is_meant(error):
                raise
            self._failed(error)

    async def _ask(self, broker: str, queues: list[MessageQueue]) -> dict[MessageQueue, Grant] | None:
        """What a broker gives of these locks; None if it does not answer."""
        try:
            address = await address_among(self._mq, (queue.topic for queue in queues), broker)
            connection = await self._mq.pool.get(address, _REQUEST_SECONDS)
            grants: dict[MessageQueue, Grant] = {}
            for piece in _pieces(queues):
                command = wire_lock.lock_command(self._client_id, self._group, piece)
                asked_at = boottime()
                terms = wire_lock.read_terms(await connection.request(command, _REQUEST_SECONDS))
                grants |= {queue: Grant(asked_at, terms[queue], connection) for queue in piece if queue in terms}
        except RayMQError as error:
            _log.debug("locks at %s: %s", broker, error)
            return None
        return grants

    async def _unlock(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            topics = {queue.topic: None for queue in queues}
            for piece in _pieces(queues):
                command = wire_lock.unlock_command(self._client_id, self._group, piece)
                await ask_among(self._mq, topics, broker, command, _REQUEST_SECONDS)
        except RayMQError as error:
            _log.debug("unlock at %s: %s", broker, error)


def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    grouped: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        grouped[queue.broker].append(queue)
    return list(grouped.items())


def _pieces(queues: list[MessageQueue]) -> Iterator[list[MessageQueue]]:
    """No more at a time than a request may name."""
    return (queues[at : at + MAX_LOCKED] for at in range(0, len(queues), MAX_LOCKED))
