"""The name-server actor: a thin shell around `NameServerService`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from raymq.actors.actor_startup import Hosted, allow_many_files
from raymq.actors.address_watch import AddressWatch, on_loopback, own_address
from raymq.actors.errors import RayMQError
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.names.service import NameServerService
from raymq.actors.naming import keeper_name
from raymq.actors.protocol import NameServerSpec
from raymq.actors.wire.commands.keeper import KEEPERS


class NameServer:
    """One per cluster or more, independent of each other. Ray restarts it with the same spec; brokers re-register."""

    def __init__(self, spec: NameServerSpec) -> None:
        self._spec = spec
        allow_many_files()
        self._loop = EventLoopThread("name-server")
        self._hosted = Hosted(f"name-server-{spec.index}", self._loop, lambda: self._start(spec))
        if not on_loopback([spec.host]):
            AddressWatch(spec.cluster, self._keepers, self._keeper_moved)

    @staticmethod
    async def _start(spec: NameServerSpec) -> NameServerService:
        return await NameServerService.start(dataclasses.replace(spec, host=own_address(spec.host)))

    def address(self, seconds: float, patience: float) -> str:
        """Where it listens, "host:port", once it does; see `Hosted.wait`."""
        return self._hosted.wait(seconds, patience).address

    def arguments(self) -> dict[str, Any]:
        """What the cluster was started with."""
        return self._spec.arguments

    def finish(self) -> None:
        """Every actor of the cluster is up."""
        self._loop.run(self._finish(self._hosted.get()))

    def is_finished(self, seconds: float, patience: float) -> bool:
        """Whether the start of the cluster was ever through, once this is up; see `Hosted.wait`."""
        return self._hosted.wait(seconds, patience).is_finished

    def publish(self, namespace: str, entries: dict[str, str]) -> None:
        """Have these entries, and no others, in a namespace of the configuration that clients can ask for."""
        self._loop.run(self._publish(self._hosted.get(), namespace, entries))

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def stop(self) -> None:
        """Close the socket; the actor is killed next."""
        self._hosted.stop()

    def _keepers(self) -> dict[str, str]:
        """The names of the keepers, by the addresses that it tells of them."""
        try:
            service = self._hosted.get()
        except RayMQError:
            return {}
        return {address: keeper_name(int(number)) for number, address in service.published(KEEPERS).items()}

    def _keeper_moved(self, name: str, address: str) -> None:
        told = self._hosted.get().published(KEEPERS)
        moved = {number: address if keeper_name(int(number)) == name else each for number, each in told.items()}
        self.publish(KEEPERS, moved)

    async def _publish(self, service: NameServerService, namespace: str, entries: dict[str, str]) -> None:
        service.publish(namespace, entries)

    async def _finish(self, service: NameServerService) -> None:
        service.finish()
