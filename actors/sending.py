"""Sending over sockets: routes, queue choice, tries within one budget. The producing side's only I/O.

Used by `raymq.client.Producer` in its own process and by the shared producer actor. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raymq.actors.core.producing import SendPlan, is_final_refusal, is_unknown, never_arrived
from raymq.actors.core.selection import LatencyIsolation, NoIsolation, QueuePicker
from raymq.actors.errors import BrokerUnavailable, QueueNotFound, RayMQError
from raymq.actors.protocol import MessageQueue, Placed, SendStatus, TopicRoute
from raymq.actors.routing import Routes
from raymq.actors.wire.append import append_command, read_appended
from raymq.actors.wire.connection import ConnectionPool
from raymq.storage.java_hash import java_hash
from raymq.storage.record import OFFSET_QUEUE_ID

_QUEUE_ID = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a send: `queue` is where it was sent, `placed` where it lies (delayed: the schedule topic)."""

    status: SendStatus
    queue: MessageQueue
    address: str
    placed: Placed


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How one send is made.

    Attributes:
        timeout: the one budget of all tries, seconds.
        retries: further tries after the first.
        queue, sharding_key: fix the queue; every try goes there.
        same_broker: further tries stay on the first one's broker.
        delayed: the records carry a DELAY property and wait in the schedule topic first.
    """

    timeout: float
    retries: int
    queue: MessageQueue | None = None
    sharding_key: str | None = None
    same_broker: bool = False
    delayed: bool = False


def make_sender(pool: ConnectionPool, routes: Routes, isolation: str | None) -> Sender:
    """A sender with the isolation strategy of that name; each starts its round robin somewhere else."""
    strategy = LatencyIsolation(time.monotonic) if isolation == "latency" else NoIsolation()
    return Sender(pool, routes, QueuePicker(strategy, start=random.randrange(1 << 16)))


class Sender:
    """Sends batches of records of one topic, each batch to one queue."""

    def __init__(self, pool: ConnectionPool, routes: Routes, picker: QueuePicker) -> None:
        self._pool = pool
        self._routes = routes
        self._picker = picker

    async def send(
        self,
        topic: str,
        records: bytearray,
        sizes: npt.NDArray[np.int32],
        options: SendOptions,
    ) -> Sent:
        """Send contiguous records of `topic`; `sizes` of each. A chosen queue's id is written into them in place.

        Raises:
            InvalidInput, QueueNotFound, TopicNotFound: refused before or by a broker; nothing is stored.
            NotStored, OutcomeUnknown: the tries ran out.
        """
        plan = SendPlan(time.monotonic, options.timeout, options.retries)
        last: MessageQueue | None = None
        while True:
            began = time.monotonic()
            target: MessageQueue | None = None
            try:
                route = await self._routes.get(topic, fresh=bool(plan.attempts), timeout=plan.try_timeout())
                target = self._target(route, options, last)
                _address_to(records, sizes, target.queue_id)
                return await self._try(route, target, records, sizes, plan, options.delayed)
            except RayMQError as error:
                elapsed = time.monotonic() - began
                if target is not None:
                    failed = is_unknown(error) or never_arrived(error) or error.code is not None
                    self._picker.isolation.report(
                        target.broker, elapsed * 1000, failed=failed, reachable=not never_arrived(error)
                    )
                wait = plan.failed(target, error, elapsed)
                if wait is None:
                    if is_final_refusal(error, plan.attempts):
                        raise
                    raise plan.outcome() from error
                last = target
                await asyncio.sleep(wait)

    async def _try(
        self,
        route: TopicRoute,
        target: MessageQueue,
        records: bytearray,
        sizes: npt.NDArray[np.int32],
        plan: SendPlan,
        delayed: bool,
    ) -> Sent:
        address = route.addresses[target.broker]
        command = append_command(target.topic, target.queue_id, records, sizes, delayed=delayed)
        began = time.monotonic()
        # One that backs off is chosen only where there is no other to go to: then it is worth waiting for.
        patient = self._pool.is_backing_off(address)
        status, placed = read_appended(await self._pool.request(address, command, plan.try_timeout(), patient=patient))
        latency_ms = (time.monotonic() - began) * 1000
        self._picker.isolation.report(target.broker, latency_ms, failed=False, reachable=True)
        return Sent(status, target, address, placed)

    def _target(self, route: TopicRoute, options: SendOptions, last: MessageQueue | None) -> MessageQueue:
        queues = route.writable()
        if options.queue is not None:
            if options.queue not in queues:
                raise QueueNotFound(f"{options.queue} is no writable queue of {route.topic}")
            return options.queue
        if not queues:
            raise BrokerUnavailable(route.topic, "the topic has no writable queue")
        if options.sharding_key is not None:
            return queues[abs(java_hash(options.sharding_key)) % len(queues)]
        if options.same_broker and last is not None:
            return self._picker.pick([mine for mine in queues if mine.broker == last.broker] or queues)
        due = [queue for queue in queues if not self._pool.is_backing_off(route.addresses[queue.broker])]
        return self._picker.pick(due or queues, last)


def _address_to(records: bytearray, sizes: npt.NDArray[np.int32], queue_id: int) -> None:
    """Write the queue id into every record; the body's CRC does not cover it."""
    if len(sizes) == 1:
        _QUEUE_ID.pack_into(records, OFFSET_QUEUE_ID, queue_id)
        return
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    fields = np.ndarray((len(records) - _QUEUE_ID.size + 1,), ">i4", records, strides=(1,))
    fields[starts + OFFSET_QUEUE_ID] = queue_id
