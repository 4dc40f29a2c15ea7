"""The shared producer actor: one per group, for applications of many short tasks that would each learn the routes anew.

It keeps connections, routes and what it learned of slow brokers; its callers hand it ready-made records.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import ray

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.protocol import Tls
from raymq.actors.routing import Routes
from raymq.actors.sending.idempotent import IdempotentSender
from raymq.actors.sending.sender import Sent, Terms, make_sender
from raymq.actors.sending.shared_batches import PooledSends
from raymq.actors.supervision import Supervisor
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import MOST_FRAME_BYTES
from raymq.actors.wire.tls import client_context

#: A shared producer that nobody used for so long ends; who sends next starts another.
IDLE_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    """What a producer actor is started with; `idle_seconds` without a send end it."""

    group: str
    name_servers: tuple[str, ...]
    isolation: str | None = "latency"
    tls: Tls | None = None
    idle_seconds: float = IDLE_SECONDS


class Producer:
    """Ray restarts it with the same spec; what it had acknowledged lies in the brokers' logs.

    One that nobody uses ends itself: a group's name that is used once costs no process for as long as the cluster runs.
    """

    def __init__(self, spec: ProducerSpec) -> None:
        self._loop = EventLoopThread("producer")
        self._under_way = 0
        #: Whether it takes no more sends: what came now would die with it, unanswered.
        self._ending = False
        self._used_at = time.monotonic()
        self._idle_seconds = spec.idle_seconds
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
        self._under_way += 1
        try:
            if self._ending:
                raise BrokerUnavailable("the shared producer", "it ends, since nobody used it")
            return await asyncio.wrap_future(self._loop.submit(sends.send(topic, bytearray(records), sizes, terms)))
        finally:
            self._used_at = time.monotonic()
            self._under_way -= 1

    async def _end_idle(self) -> None:
        while not self._ending:
            await asyncio.sleep(self._idle_seconds / 10)
            self._ending = time.monotonic() - self._used_at >= self._idle_seconds
            if self._under_way:  # it came before it could be told
                self._ending = False
        ray.kill(ray.get_runtime_context().current_actor)  # for good: Ray starts it no more

    def stop(self) -> None:
        """Close its sockets; the actor is killed next."""
        self._loop.stop()

    async def _open(self, spec: ProducerSpec) -> tuple[PooledSends, PooledSends]:
        pool = ConnectionPool(
            tls=None if spec.tls is None else client_context(spec.tls), max_frame_bytes=MOST_FRAME_BYTES
        )
        sender = make_sender(pool, Routes(pool, spec.name_servers), spec.isolation)
        Supervisor(f"shared producer of {spec.group}").keep("end where nobody sends", self._end_idle)
        return PooledSends(sender), PooledSends(IdempotentSender(sender))
