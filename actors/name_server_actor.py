"""The name-server actor: a Ray actor around `NameServerService`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from raymq.actors.address_watch import AddressWatch, is_loopback_only, resolve_own_address
from raymq.actors.errors import RayMQError
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import HostedService, raise_file_limit
from raymq.actors.names.service import NameServerService
from raymq.actors.naming import keeper_name
from raymq.actors.protocol import NameServerSpec
from raymq.actors.wire.commands.keeper_commands import KEEPERS


class NameServer:
    """One of the independent name servers of a cluster.

    Ray restarts it with the same spec, and the brokers register again.
    """

    def __init__(self, spec: NameServerSpec) -> None:
        self._spec = spec
        raise_file_limit()
        self._loop = EventLoopThread("name-server")
        self._hosted = HostedService(f"name-server-{spec.index}", self._loop, lambda: self._start(spec))
        if not is_loopback_only([spec.host]):
            AddressWatch(spec.cluster, self._keepers, self._keeper_moved)

    def __repr__(self) -> str:
        """Return the name in Ray's dashboard and before its lines in Ray's logs."""
        return f"NameServer({self._spec.index})"

    @staticmethod
    async def _start(spec: NameServerSpec) -> NameServerService:
        return await NameServerService.start(dataclasses.replace(spec, host=resolve_own_address(spec.host)))

    def address(self, seconds: float, patience: float) -> str:
        """Return the address "host:port", once the server listens; see `HostedService.wait`."""
        return self._hosted.wait(seconds, patience).address

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the cluster's start."""
        return self._spec.arguments

    def finish(self) -> None:
        """Record that every actor of the cluster is up."""
        self._loop.run(self._finish(self._hosted.get()))

    def is_finished(self, seconds: float, patience: float) -> bool:
        """Return True if the cluster's start has completed; wait until this server is up.

        See `HostedService.wait`.
        """
        return self._hosted.wait(seconds, patience).is_finished

    def publish(self, namespace: str, entries: dict[str, str]) -> None:
        """Replace all entries of a configuration namespace, which clients can read."""
        self._loop.run(self._publish(self._hosted.get(), namespace, entries))

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def stop(self) -> None:
        """Close the socket; the caller kills the actor next."""
        self._hosted.stop()

    def _keepers(self) -> dict[str, str]:
        """Return the actor names of the keepers by their published addresses."""
        try:
            service = self._hosted.get()
        except RayMQError:
            return {}
        return {address: keeper_name(int(number)) for number, address in service.published(KEEPERS).items()}

    def _keeper_moved(self, name: str, address: str) -> None:
        published = self._hosted.get().published(KEEPERS)
        moved = {number: address if keeper_name(int(number)) == name else each for number, each in published.items()}
        self.publish(KEEPERS, moved)

    async def _publish(self, service: NameServerService, namespace: str, entries: dict[str, str]) -> None:
        service.publish(namespace, entries)

    async def _finish(self, service: NameServerService) -> None:
        service.finish()
