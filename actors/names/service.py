"""A name server without Ray: a route table behind a socket.

The actor in `name_server_actor` wraps it. Its address is chosen once and kept in
`<directory>/name-server-<index>.json`, so that a restart on the same machine uses it again. The key-value entries and
settings are in files beside it. All other data comes from the brokers' heartbeats.
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
from raymq.actors.names.kv_config import ORDER_TOPICS, KVConfig
from raymq.actors.names.route_table import RouteTable
from raymq.actors.ports import bind_persistent_port
from raymq.actors.protocol import NameServerSpec
from raymq.actors.server_settings import ServerSettings, SettingsFile, parse_bool
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.coordinator_directory_commands import BROKERS_NAMESPACE
from raymq.actors.wire.commands.keeper_commands import KEEPERS, REGISTER
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
        """Load the entries and settings; raise StoreCorrupt if they cannot be read."""
        self.address = f"{spec.host}:{port}"
        self.table = RouteTable(boottime)
        self._tells_order = False
        files = Path(spec.directory) / f"name-server-{spec.index}"
        self._entries = KVConfig(files.with_suffix(".kv.json"))
        settings = ServerSettings(
            SettingsFile(files.with_suffix(".settings.json")),
            {"listenPort": str(port), "bindAddress": spec.host},
            {"orderMessageEnable": ("false", self._notify_order)},
        )
        tls = None if spec.tls is None else client_context(spec.tls)
        self._controller = ControllerHandlers(self.address, self._register_at, tls)
        self._server = Server(
            {
                **route_handlers.handlers(self.table, self._order_of, lambda: self._entries.entries(BROKERS_NAMESPACE)),
                **kv.handlers(self._entries, settings, self.table.forget_left_broker),
                **self._controller.handlers(),
                RequestCode.STATUS: self._who,
            },
            tls=None if spec.tls is None else server_context(spec.tls),
        )
        self._sweeper: asyncio.Task[None] | None = None
        self._spec = spec
        self._identity_file = files.with_suffix(".json")
        #: Whether the cluster start that created this actor has completed.
        self.is_finished = False
        #: Whether this still has to be written to the file.
        self._owes_finished = False

    def finish(self) -> None:
        """Record that the cluster start which created this actor has completed.

        It is persisted, so that later restarts of the actor know it.
        """
        self._owes_finished = True
        with contextlib.suppress(StoreFull):  # the brokers on this disk may free space soon: `_sweep` tries again
            self._write_finished()
        self.is_finished = True

    def publish(self, namespace: str, entries: Mapping[str, str]) -> None:
        """Replace all entries of a configuration namespace by these."""
        self._entries.replace(namespace, entries)

    def _register_at(self) -> Mapping[str, str]:
        keepers = self._entries.entries(KEEPERS)
        return self._entries.entries(REGISTER) or {number: at for number, at in keepers.items() if number.isdecimal()}

    def published(self, namespace: str) -> dict[str, str]:
        """Return the entries of a configuration namespace. Any thread."""
        return dict(self._entries.entries(namespace))

    def _write_finished(self) -> None:
        if self._owes_finished:
            known = json_file.load(self._identity_file)
            json_file.save(self._identity_file, {**known, "finished": self._spec.start_id}, _kept)
            self._owes_finished = False

    @classmethod
    async def start(cls, spec: NameServerSpec) -> NameServerService:
        """Listen at the kept address, or at a new one.

        Raise OSError if the port is taken, and StoreCorrupt if a file cannot be read.
        """
        file = Path(spec.directory) / f"name-server-{spec.index}.json"
        kept_port, finished = json_file.load_as(file, _kept)
        port = spec.port or kept_port
        if port == spec.arguments.get("port") != spec.port:  # the kept port is now that of the first name server
            port = 0
        bound = bind_persistent_port(spec.host, port)
        try:
            port = int(bound.getsockname()[1])
            service = cls(spec, port)
            service.is_finished = bool(spec.start_id) and finished == spec.start_id
            # Save before listening: a failed start must not leave a server on the port that the next start uses.
            content = {"host": spec.host, "port": port, "finished": finished}
            try:
                json_file.save(file, content, _kept)
            except StoreFull:
                if json_file.load(file) != content:  # else the file has these values already
                    raise
            await service._server.start(bound)
        except BaseException:
            bound.close()
            raise
        service._sweeper = asyncio.get_running_loop().create_task(service._sweep())
        return service

    async def stop(self) -> None:
        """Stop listening; clients continue with the routes that they have."""
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

    def _notify_order(self, value: str) -> None:
        self._tells_order = parse_bool(value)

    def _order_of(self, topic: str) -> str | None:
        return self._entries.find(ORDER_TOPICS, topic) if self._tells_order else None

    def _who(self, _: ServerConnection, request: Command) -> Command:
        fields = {"address": self.address, "pid": os.getpid(), "seconds": int(self.table.seconds)}
        return request.response(ResponseCode.SUCCESS, fields)


def _kept(raw: Mapping[str, Any]) -> tuple[int, str]:
    """Return the port and the id of the completed start in the file."""
    port = int(raw.get("port", 0))
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port {port}")
    return port, str(raw.get("finished", ""))
