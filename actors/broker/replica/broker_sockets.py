"""Bind the sockets of a broker of a group once, for all its roles."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Final

from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.ports import bind_broker, bind_persistent_port
from raymq.actors.protocol import Tls
from raymq.actors.wire.frame import Command
from raymq.actors.wire.in_memory_transport import InMemoryTransport
from raymq.actors.wire.server import Server, has_free_descriptors
from raymq.actors.wire.server_connection import Handler
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls import server_context
from raymq.actors.wire.tls_listener import PendingHandshake, TlsListener

#: A broker that is not master has no running requests worth a longer drain.
_LIMITS: Final = ServerLimits(drain_seconds=0.2)
#: A group has few replicas.
_REPLICA_LIMITS: Final = ServerLimits(handshakes=32)
_WAITING: Final = 1024


class BrokerSockets:
    """The broker's port, its VIP channel, and the port for replicas.

    They are used on the broker's loop. Each role's server gets duplicates of them, so that connections are accepted
    while the role changes.
    """

    def __init__(self, host: str, port: int, replication_port: int, tls: Tls | None) -> None:
        """Bind and listen, with port 0 at any free port.

        Raise OSError if a port is taken.
        """
        self._host = host
        with contextlib.ExitStack() as bound:
            self._clients = [bound.enter_context(each) for each in bind_broker(host, port)]
            self._replicas = bound.enter_context(bind_persistent_port(host, replication_port))
            for each in (*self._clients, self._replicas):
                each.listen(_WAITING)
                # Duplicates share this flag: a duplicate of a blocking socket would make the earlier server block, too.
                each.setblocking(False)
            bound.pop_all()
        self._tls = None if tls is None else server_context(tls)
        self._server: Server | None = None
        self._door: InMemoryTransport | None = None
        self._shipping: asyncio.Server | TlsListener | None = None
        self._port: _ReplicaPort | None = None

    @property
    def port(self) -> int:
        """Return the broker's port."""
        return int(self._clients[0].getsockname()[1])

    @property
    def replication_port(self) -> int:
        """Return the port to which replicas connect."""
        return int(self._replicas.getsockname()[1])

    @property
    def is_refusing(self) -> bool:
        """Return True while clients are refused here."""
        return self._server is not None

    def dup_client_sockets(self) -> list[socket.socket]:
        """Return duplicates for a server, which closes them."""
        return [each.dup() for each in self._clients]

    async def serve_replicas(self, accept: Callable[[], FrameStream]) -> None:
        """Accept replicas; `accept` returns the protocol of each connection."""
        if self._tls is None:
            self._shipping = await asyncio.get_running_loop().create_server(accept, sock=self._replicas.dup())
        else:
            self._port = _ReplicaPort(accept)
            self._shipping = TlsListener(self._port, self._replicas.dup(), self._tls)

    async def refuse(self, handlers: Mapping[int, Handler]) -> None:
        """Answer clients with these handlers until `stop_refusing`."""
        self._server = Server(handlers, limits=_LIMITS, tls=self._tls)
        self._door = InMemoryTransport(self._server)
        own, *vip_channel = self.dup_client_sockets()
        await self._server.start(own)
        for each in vip_channel:
            await self._server.listen(each)

    async def stop_refusing(self) -> None:
        """Stop answering clients, because another server takes over."""
        server, self._server, self._door = self._server, None, None
        if server is not None:
            await server.stop()

    async def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command as `InMemoryTransport.invoke` does."""
        if self._door is None:
            raise BrokerUnavailable(self._host, "its role is being changed")
        return await self._door.invoke(session, request)

    async def close(self) -> None:
        """Close all sockets."""
        await self.stop_refusing()
        if self._shipping is not None:
            self._shipping.close()
        if self._port is not None:
            self._port.close()
        for each in (*self._clients, self._replicas):
            each.close()


class _ReplicaPort:
    """The limits and counts of connections that are in the TLS handshake.

    After the handshake the protocol that `accept` returns is responsible for counting.
    """

    def __init__(self, accept: Callable[[], FrameStream]) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = _REPLICA_LIMITS
        self.draining = False
        self.refused_connections = 0
        self.pending_handshakes: dict[PendingHandshake, None] = {}
        self.connections = ()
        self.accept = accept

    def has_capacity(self, accepted: socket.socket) -> bool:
        """Return True if one more connection may stay."""
        return has_free_descriptors(accepted)

    def close(self) -> None:
        """Drop connections that are still in the handshake."""
        self.draining = True
        for greeting in list(self.pending_handshakes):
            greeting.give_up()
