"""The shared producer actor: one per group, for applications of many short tasks that would each learn the routes anew.

It keeps connections, routes and what it learned of slow brokers; its callers hand it ready-made records.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raymq.actors.event_loop import EventLoopThread
from raymq.actors.idempotent_sending import IdempotentSender
from raymq.actors.pooling import PooledSends
from raymq.actors.protocol import Tls
from raymq.actors.routing import Routes
from raymq.actors.sending import Sent, Terms, make_sender
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.tls import client_context


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    """What a producer actor is started with."""

    group: str
    name_servers: tuple[str, ...]
    isolation: str | None = "latency"
    tls: Tls | None = None


class Producer:
    """Ray restarts it with the same spec; what it had acknowledged lies in the brokers' logs."""

    def __init__(self, spec: ProducerSpec) -> None:
        self._loop = EventLoopThread("producer")
        self._plain, self._numbered = self._loop.run(self._open(spec))

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    async def send(
        self, topic: str, records: bytes, sizes: npt.NDArray[np.int32], terms: Terms, idempotent: bool = False
    ) -> Sent:
        """Send contiguous records of one topic, joined with what others send; errors as `Sender.send` says.

        Args:
            idempotent: number the batch that they travel in, so that a lost answer makes no duplicate.
        """
        sends = self._numbered if idempotent else self._plain
        return await asyncio.wrap_future(self._loop.submit(sends.send(topic, bytearray(records), sizes, terms)))

    def stop(self) -> None:
        """Close its sockets; the actor is killed next."""
        self._loop.stop()

    async def _open(self, spec: ProducerSpec) -> tuple[PooledSends, PooledSends]:
        pool = ConnectionPool(tls=None if spec.tls is None else client_context(spec.tls))
        sender = make_sender(pool, Routes(pool, spec.name_servers), spec.isolation)
        return PooledSends(sender), PooledSends(IdempotentSender(sender))
