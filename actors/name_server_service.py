"""A name server without Ray: a route table behind a socket. The actor `raymq.actors.name_server.NameServer` wraps it.

Its address is chosen once and kept in `<directory>/name-server-<index>.json`, so that a restart on the same machine
comes back to it. All else it knows is learned from the brokers' heartbeats.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from raymq.actors.core.name_server import RouteTable
from raymq.actors.protocol import NameServerSpec
from raymq.actors.wire import route
from raymq.actors.wire.server import Server, bind
from raymq.storage import json_file

_SWEEP_SECONDS = 0.5


class NameServerService:
    """One running name server. Made by `start`, used and stopped on its event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.table = RouteTable(time.monotonic)
        self._server = Server(route.handlers(self.table, lambda: {"address": address, "pid": os.getpid()}))
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, spec: NameServerSpec) -> NameServerService:
        """Listen. Raises OSError if the port is taken."""
        file = Path(spec.directory) / f"name-server-{spec.index}.json"
        port = spec.port or int(json_file.load(file).get("port", 0))
        bound = bind(spec.host, port)
        port = int(bound.getsockname()[1])
        service = cls(f"{spec.host}:{port}")
        await service._server.start(bound)
        json_file.save(file, {"host": spec.host, "port": port})
        service._sweeper = asyncio.get_running_loop().create_task(service._sweep())
        return service

    async def stop(self) -> None:
        """Stop listening; clients go on with the routes that they have."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._server.stop()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.table.expire()
