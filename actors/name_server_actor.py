"""The name-server actor: a thin shell around `NameServerService`."""

from __future__ import annotations

import os
from typing import Any

from raymq.actors.actor_startup import Hosted, allow_many_files
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec


class NameServer:
    """One per cluster or more, independent of each other. Ray restarts it with the same spec; brokers re-register."""

    def __init__(self, spec: NameServerSpec) -> None:
        self._spec = spec
        allow_many_files()
        self._loop = EventLoopThread("name-server")
        self._hosted = Hosted(f"name-server-{spec.index}", self._loop, lambda: NameServerService.start(spec))

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

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def stop(self) -> None:
        """Close the socket; the actor is killed next."""
        self._hosted.stop()

    async def _finish(self, service: NameServerService) -> None:
        service.finish()
