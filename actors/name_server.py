"""The name-server actor: a thin shell around `NameServerService`."""

from __future__ import annotations

import os
from typing import Any

from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosting import allow_many_files, start_patiently
from raymq.actors.name_server_service import NameServerService
from raymq.actors.protocol import NameServerSpec


class NameServer:
    """One per cluster or more, independent of each other. Ray restarts it with the same spec; brokers re-register."""

    def __init__(self, spec: NameServerSpec) -> None:
        self._spec = spec
        allow_many_files()
        self._loop = EventLoopThread("name-server")
        self._service = start_patiently(self._loop, lambda: NameServerService.start(spec))

    def address(self) -> str:
        """Where it listens, "host:port"."""
        return self._service.address

    def arguments(self) -> dict[str, Any]:
        """What the cluster was started with."""
        return self._spec.arguments

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def stop(self) -> None:
        """Close the socket; the actor is killed next."""
        self._loop.run(self._service.stop())
        self._loop.stop()
