"""The shared producer actor: one per group, for applications of many short tasks.

Without it each task would fetch the routes and connect by itself. The actor keeps connections, routes and the latencies
of slow brokers. Its callers pass encoded records.
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
from raymq.actors.route_cache import RouteCache
from raymq.actors.sending.batching_sender import BatchingSender
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import SendOutcome, make_sender
from raymq.actors.supervisor import Supervisor
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import MESSAGE_FRAME_BYTES
from raymq.actors.wire.tls import client_context

#: A shared producer without a send for this long ends; the next send starts another one.
IDLE_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    """The arguments of a producer actor.

    It ends after `idle_seconds` without a send.
    """

    group: str
    name_servers: tuple[str, ...]
    isolation: str | None = "latency"
    tls: Tls | None = None
    idle_seconds: float = IDLE_SECONDS


class Producer:
    """The shared producer of a group.

    Ray restarts it with the same spec. Acknowledged messages are in the brokers' logs, so a restart does not lose them.
    A producer without sends ends itself, so that a group that is used only once does not cost a process as long as the
    cluster runs.
    """

    def __init__(self, spec: ProducerSpec) -> None:
        self._group = spec.group
        self._loop = EventLoopThread("producer")
        self._under_way = 0
        #: Whether the actor refuses sends because it ends: they would be lost without an answer.
        self._ending = False
        self._used_at = time.monotonic()
        self._idle_seconds = spec.idle_seconds
        self._sends = self._loop.run(self._open(spec))

    def __repr__(self) -> str:
        """Return the name in Ray's dashboard and before its lines in Ray's logs."""
        return f"Producer({self._group})"

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def send(
        self, topic: str, records: bytes, sizes: npt.NDArray[np.int32], terms: SendParameters
    ) -> SendOutcome:
        """Send contiguous records of one topic, joined with other callers' records.

        Raise the errors of `Sender.send`.
        """
        self._under_way += 1
        try:
            if self._ending:
                raise BrokerUnavailable("the shared producer", "it is stopping because it was not used")
            return await asyncio.wrap_future(
                self._loop.submit(self._sends.send(topic, bytearray(records), sizes, terms))
            )
        finally:
            self._used_at = time.monotonic()
            self._under_way -= 1

    async def _end_idle(self) -> None:
        while not self._ending:
            await asyncio.sleep(self._idle_seconds / 10)
            self._ending = time.monotonic() - self._used_at >= self._idle_seconds
            if self._under_way:  # a send arrived before `_ending` was set
                self._ending = False
        ray.kill(ray.get_runtime_context().current_actor)  # without a restart by Ray

    def stop(self) -> None:
        """Close the sockets; the caller kills the actor next."""
        self._loop.stop()

    async def _open(self, spec: ProducerSpec) -> BatchingSender:
        pool = ConnectionPool(
            tls=None if spec.tls is None else client_context(spec.tls), max_frame_bytes=MESSAGE_FRAME_BYTES
        )
        sender = make_sender(pool, RouteCache(pool, spec.name_servers), spec.isolation)
        Supervisor(f"shared producer of {spec.group}").keep("stop when idle", self._end_idle)
        return BatchingSender(sender)
