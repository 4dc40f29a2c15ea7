"""Asking isolated brokers whether they are back, so that an isolation ends before its time. Runs on one event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.sending.isolation import Isolation
from raymq.actors.supervision import Supervisor, is_meant
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command

#: Each suspect is asked this often, and has this long to answer (RocketMQ's detectInterval and detectTimeout).
PROBE_EVERY_SECONDS: Final = 2.0
PROBE_TIMEOUT_SECONDS: Final = 0.2


class Prober:
    """Probes while the strategy has suspects, and sleeps otherwise."""

    def __init__(self, pool: ConnectionPool, isolation: Isolation) -> None:
        self._pool = pool
        self.isolation = isolation
        self._addresses: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        #: Whatever happens to it, the probing goes on: without it nobody ends an isolation before its time.
        self.supervisor = Supervisor("sender")

    def know(self, broker: str, address: str) -> None:
        """Where a broker is asked."""
        self._addresses[broker] = address

    def wake(self) -> None:
        """A broker was silent: begin to probe, unless that is under way."""
        if self._task is None or self._task.done():
            self._task = self.supervisor.keep("probing of brokers", self._probe_suspects)

    async def _probe_suspects(self) -> None:
        while self.isolation.suspects():
            await asyncio.sleep(PROBE_EVERY_SECONDS)
            await asyncio.gather(*(self._try(broker) for broker in self.isolation.suspects()))

    async def _try(self, broker: str) -> None:
        """A probe; what nobody expected of it is told, and keeps no other broker isolated."""
        try:
            await self._probe(broker)
        except BaseException as error:
            if is_meant(error):
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
            pass  # whatever it answers says that it is there
        self.isolation.recovered(broker)
