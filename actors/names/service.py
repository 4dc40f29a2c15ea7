"""A name server without Ray: a route table behind a socket. The actor in `name_server_actor` wraps it.

Its address is chosen once and kept in `<directory>/name-server-<index>.json`, so that a restart on the same machine
comes back to it; beside it lie its key-value entries and settings. All else is learned from the brokers' heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raymq.actors.names import configuration_handlers as kv
from raymq.actors.names import route_handlers
from raymq.actors.names.controller_handlers import ControllerHandlers
from raymq.actors.names.key_values import ORDER_TOPICS, KeyValues
from raymq.actors.names.table import RouteTable
from raymq.actors.ports import bind_kept
from raymq.actors.protocol import NameServerSpec
from raymq.actors.server_settings import Settings, truth
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands import members
from raymq.actors.wire.commands.keeper import KEEPERS, REGISTER
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import Server
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.tls import client_context, server_context
from raymq.storage.clock import boottime
from raymq.storage.errors import StoreError, StoreFull
from raymq.storage.files import json_file

_SWEEP_SECONDS = 0.5


class NameServerService:
    """One running name server. Made by `start`, used and stopped on its event loop."""

    def __init__(self, spec: NameServerSpec, port: int) -> None:
        """Raises StoreCorrupt if its entries or settings cannot be read."""
        self.address = f"{spec.host}:{port}"
        self.table = RouteTable(boottime)
        self._tells_order = False
        files = Path(spec.directory) / f"name-server-{spec.index}"
        self._entries = KeyValues(files.with_suffix(".kv.json"))
        settings = Settings(
            files.with_suffix(".settings.json"),
            {"listenPort": str(port), "bindAddress": spec.host},
            {"orderMessageEnable": ("false", self._tell_order)},
        )
        tls = None if spec.tls is None else client_context(spec.tls)
        self._controller = ControllerHandlers(self.address, self._register_at, tls)
        self._server = Server(
            {
                **route_handlers.handlers(self.table, self._order_of, lambda: self._entries.entries(members.NAMESPACE)),
                **kv.handlers(self._entries, settings, self.table.forget_away),
                **self._controller.handlers(),
                RequestCode.STATUS: self._who,
            },
            tls=None if spec.tls is None else server_context(spec.tls),
        )
        self._sweeper: asyncio.Task[None] | None = None
        self._spec = spec
        self._identity_file = files.with_suffix(".json")
        #: Whether the start that made this actor saw every actor of the cluster come up.
        self.is_finished = False
        #: Whether that is not in the file yet.
        self._owes_finished = False

    def finish(self) -> None:
        """The start that made this actor is through; its restarts know it."""
        self._owes_finished = True
        with contextlib.suppress(StoreFull):  # brokers may be about to make room: it is tried again
            self._write_finished()
        self.is_finished = True

    def publish(self, namespace: str, entries: Mapping[str, str]) -> None:
        """Have these entries, and no others, in a namespace of the configuration."""
        self._entries.replace(namespace, entries)

    def _register_at(self) -> Mapping[str, str]:
        keepers = self._entries.entries(KEEPERS)
        return self._entries.entries(REGISTER) or {number: at for number, at in keepers.items() if number.isdecimal()}

    def published(self, namespace: str) -> dict[str, str]:
        """What is in a namespace of the configuration. Any thread."""
        return dict(self._entries.entries(namespace))

    def _write_finished(self) -> None:
        if self._owes_finished:
            known = json_file.load(self._identity_file)
            json_file.save(self._identity_file, {**known, "finished": self._spec.start_id}, _kept)
            self._owes_finished = False

    @classmethod
    async def start(cls, spec: NameServerSpec) -> NameServerService:
        """Listen. Raises OSError if the port is taken, StoreCorrupt if what it kept cannot be read."""
        file = Path(spec.directory) / f"name-server-{spec.index}.json"
        kept_port, finished = json_file.load_as(file, _kept)
        port = spec.port or kept_port
        if port == spec.arguments.get("port") != spec.port:  # it was the first one of another address: that one has it
            port = 0
        bound = bind_kept(spec.host, port)
        try:
            port = int(bound.getsockname()[1])
            service = cls(spec, port)
            service.is_finished = bool(spec.start_id) and finished == spec.start_id
            # Before it listens: a start that fails must not leave a server on the port that the next one comes back to.
            told = {"host": spec.host, "port": port, "finished": finished}
            try:
                json_file.save(file, told, _kept)
            except StoreFull:
                if json_file.load(file) != told:  # else it says so already
                    raise
            await service._server.start(bound)
        except BaseException:
            bound.close()
            raise
        service._sweeper = asyncio.get_running_loop().create_task(service._sweep())
        return service

    async def stop(self) -> None:
        """Stop listening; clients go on with the routes that they have."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._server.stop()
        await self._controller.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.table.expire()
            with contextlib.suppress(StoreError):
                self._write_finished()

    def _tell_order(self, value: str) -> None:
        self._tells_order = truth(value)

    def _order_of(self, topic: str) -> str | None:
        return self._entries.find(ORDER_TOPICS, topic) if self._tells_order else None

    def _who(self, _: ServerConnection, request: Command) -> Command:
        told = {"address": self.address, "pid": os.getpid(), "seconds": int(self.table.seconds)}
        return request.response(ResponseCode.SUCCESS, told)


def _kept(raw: Mapping[str, Any]) -> tuple[int, str]:
    """The port, and which start was finished, as the file says."""
    port = int(raw.get("port", 0))
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port {port}")
    return port, str(raw.get("finished", ""))
