"""Probe isolated brokers, so that their isolation can end early.

It runs on one event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.sending.isolation import Isolation
from raymq.actors.supervisor import Supervisor, is_own_cancellation
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command

#: The interval of the probes of a suspect, and their time-out (RocketMQ's detectInterval and detectTimeout).
PROBE_EVERY_SECONDS: Final = 2.0
PROBE_TIMEOUT_SECONDS: Final = 0.2


class BrokerProber:
    """Probes brokers while the isolation strategy has suspects, and sleeps otherwise."""

    def __init__(self, pool: ConnectionPool, isolation: Isolation) -> None:
        self._pool = pool
        self.isolation = isolation
        self._addresses: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        #: Restarts the probing after any error: without probes no isolation ends early.
        self.supervisor = Supervisor("sender")

    def set_address(self, broker: str, address: str) -> None:
        """Set the address at which a broker is probed."""
        self._addresses[broker] = address

    def wake(self) -> None:
        """Begin to probe after a broker did not answer, unless probing is in progress."""
        if self._task is None or self._task.done():
            self._task = self.supervisor.keep("probing of brokers", self._probe_suspects)

    async def _probe_suspects(self) -> None:
        while self.isolation.suspects():
            await asyncio.sleep(PROBE_EVERY_SECONDS)
            await asyncio.gather(*(self._try(broker) for broker in self.isolation.suspects()))

    async def _try(self, broker: str) -> None:
        """Probe one broker; report an unexpected error without ending the other probes."""
        try:
            await self._probe(broker)
        except BaseException as error:
            if is_own_cancellation(error):
                raise
            self.supervisor.report("probe of a broker", error)
        else:
            self.supervisor.succeeded("probe of a broker")

    async def _probe(self, broker: str) -> None:
        address = self._addresses.get(broker)
        if address is None:
            return
        try:
            await self._pool.request(address, Command(RequestCode.STATUS), PROBE_TIMEOUT_SECONDS)
        except BrokerUnavailable:
            return
        except RayMQError:
            pass  # any answer shows that the broker is running
        self.isolation.recovered(broker)
