"""Request and renew the locks of an ordered consumer at the brokers.

A lock gives a queue to one member at a time, by a lease at the queue's broker. Runs on the connection's event loop,
except `may_begin`. `lock_table` defines how long a lock may be used.
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
from raymq.actors.supervisor import is_own_cancellation
from raymq.actors.wire.commands import lock_commands as wire_lock
from raymq.client.connection import Connection
from raymq.client.members.lock_table import LockGrant, LockTable
from raymq.client.requests.broker_requests import broker_address_via, request_via_topics
from raymq.storage.clock import boottime

_REQUEST_SECONDS = 3.0

_log = logging.getLogger(__name__)


class QueueLockClient:
    """The locks of one member of one group.

    `ConsumeMessageService` begins a call only if `may_begin` allows it.
    """

    def __init__(self, mq: Connection, client_id: str, group: str, failed: Callable[[BaseException], object]) -> None:
        """Create a client without locks.

        `failed` is called with the unexpected error of a renewal; the next renewal is sent when it is due.
        """
        self._mq = mq
        self._failed = failed
        self._client_id = client_id
        self._group = group
        self._table = LockTable(boottime)
        self._wanted = asyncio.Event()
        self._renewals: dict[str, asyncio.Task[None]] = {}
        #: Callable from any thread: returns True if a call with messages of a queue may begin now.
        self.may_begin = self._table.may_begin

    def want(self, queue: MessageQueue) -> None:
        """Request the lock of a queue soon, since a call waits for it.

        `keep` reports when the call may begin.
        """
        self._table.want(queue)
        self._wanted.set()

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Request the locks of `queues` and return the queues whose locks are held now."""
        answers = await asyncio.gather(*(self._request(*each) for each in _by_broker(queues)))
        granted = {queue: grant for grants in answers if grants is not None for queue, grant in grants.items()}
        for queue, grant in granted.items():
            self._table.granted(queue, grant)
        return set(granted)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks; if a request fails, the lease expires."""
        for queue in (released := list(queues)):
            self._table.forget(queue)
        await asyncio.gather(*(self._unlock(*each) for each in _by_broker(released)))

    async def keep(
        self,
        owned: Callable[[], Collection[MessageQueue]],
        on_renewed: Callable[[set[MessageQueue], set[MessageQueue]], None],
    ) -> None:
        """Renew the locks of the queues in `owned()`, without end.

        Args:
            on_renewed: called with the queues whose locks were renewed, so that their calls may begin, and those whose
                locks are lost.
        """
        try:
            while True:
                if ended := self._table.ended(owned()):
                    on_renewed(set(), ended)
                due = self._table.due(owned())
                self._table.tried(due)
                for broker, queues in _by_broker(due):
                    if broker not in self._renewals:  # a broker that hangs does not delay the others
                        task = asyncio.get_running_loop().create_task(self._renew(broker, queues, on_renewed))
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
        on_renewed: Callable[[set[MessageQueue], set[MessageQueue]], None],
    ) -> None:
        try:
            grants = await self._request(broker, queues)
            if grants is not None:
                renewed = {queue for queue, grant in grants.items() if self._table.granted(queue, grant)}
                on_renewed(renewed, set(queues) - renewed)
        except BaseException as error:
            if is_own_cancellation(error):
                raise
            self._failed(error)

    async def _request(self, broker: str, queues: list[MessageQueue]) -> dict[MessageQueue, LockGrant] | None:
        """Return the locks that a broker grants; None if it does not answer."""
        try:
            address = await broker_address_via(self._mq, (queue.topic for queue in queues), broker)
            connection = await self._mq.pool.get(address, _REQUEST_SECONDS)
            grants: dict[MessageQueue, LockGrant] = {}
            for piece in _pieces(queues):
                command = wire_lock.lock_command(self._client_id, self._group, piece)
                asked_at = boottime()
                terms = wire_lock.read_terms(await connection.request(command, _REQUEST_SECONDS))
                grants |= {queue: LockGrant(asked_at, terms[queue], connection) for queue in piece if queue in terms}
        except RayMQError as error:
            _log.debug("locks at %s: %s", broker, error)
            return None
        return grants

    async def _unlock(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            topics = {queue.topic: None for queue in queues}
            for piece in _pieces(queues):
                command = wire_lock.unlock_command(self._client_id, self._group, piece)
                await request_via_topics(self._mq, topics, broker, command, _REQUEST_SECONDS)
        except RayMQError as error:
            _log.debug("unlock at %s: %s", broker, error)


def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    grouped: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        grouped[queue.broker].append(queue)
    return list(grouped.items())


def _pieces(queues: list[MessageQueue]) -> Iterator[list[MessageQueue]]:
    """Split queues into pieces of at most `MAX_LOCKED`, the maximum of a request."""
    return (queues[at : at + MAX_LOCKED] for at in range(0, len(queues), MAX_LOCKED))
