"""The sockets of a broker of a group: bound once, listening for the whole life, whatever its role is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Final

from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.ports import bind_broker, bind_kept
from raymq.actors.protocol import Tls
from raymq.actors.wire.frame import Command
from raymq.actors.wire.limits import ServerLimits
from raymq.actors.wire.memory_door import InvokeDoor
from raymq.actors.wire.server import Server, has_descriptors
from raymq.actors.wire.server_connection import Handler
from raymq.actors.wire.tls import server_context
from raymq.actors.wire.tls_listener import Greeting, TlsListener

#: Who is no master has nothing under way that would be waited for.
_LIMITS: Final = ServerLimits(drain_seconds=0.2)
#: A group has few replicas.
_REPLICA_LIMITS: Final = ServerLimits(handshakes=32)
_WAITING: Final = 1024


class Listening:
    """The broker's port, its VIP channel, and the one that replicas connect to. Used on the broker's loop.

    Each role's server gets duplicates of them, so that nobody is turned away while the role changes.
    """

    def __init__(self, host: str, port: int, replication_port: int, tls: Tls | None) -> None:
        """Bind and listen, at any free port where it is 0; OSError: a port is taken."""
        self._host = host
        with contextlib.ExitStack() as bound:
            self._clients = [bound.enter_context(each) for each in bind_broker(host, port)]
            self._replicas = bound.enter_context(bind_kept(host, replication_port))
            for each in (*self._clients, self._replicas):
                each.listen(_WAITING)
                # Duplicates share this: one made of a socket that blocks would have the server before it block, too.
                each.setblocking(False)
            bound.pop_all()
        self._tls = None if tls is None else server_context(tls)
        self._server: Server | None = None
        self._door: InvokeDoor | None = None
        self._shipping: asyncio.Server | TlsListener | None = None
        self._port: _ReplicaPort | None = None

    @property
    def port(self) -> int:
        """The broker's."""
        return int(self._clients[0].getsockname()[1])

    @property
    def replication_port(self) -> int:
        """The one that replicas connect to."""
        return int(self._replicas.getsockname()[1])

    @property
    def is_refusing(self) -> bool:
        """Whether clients are answered here."""
        return self._server is not None

    def for_clients(self) -> list[socket.socket]:
        """Duplicates for a server, which closes them."""
        return [each.dup() for each in self._clients]

    async def serve_replicas(self, accept: Callable[[], FrameStream]) -> None:
        """`accept` gives the protocol of each connection of a replica."""
        if self._tls is None:
            self._shipping = await asyncio.get_running_loop().create_server(accept, sock=self._replicas.dup())
        else:
            self._port = _ReplicaPort(accept)
            self._shipping = TlsListener(self._port, self._replicas.dup(), self._tls)

    async def refuse(self, handlers: Mapping[int, Handler]) -> None:
        """Answer clients so, who look for a master, until `stop_refusing`."""
        self._server = Server(handlers, limits=_LIMITS, tls=self._tls)
        self._door = InvokeDoor(self._server)
        own, *vip_channel = self.for_clients()
        await self._server.start(own)
        for each in vip_channel:
            await self._server.listen(each)

    async def stop_refusing(self) -> None:
        """Somebody else answers them."""
        server, self._server, self._door = self._server, None, None
        if server is not None:
            await server.stop()

    async def invoke(self, session: str, request: Command) -> Command:
        """As `InvokeDoor.invoke`."""
        if self._door is None:
            raise BrokerUnavailable(self._host, "its role is being changed")
        return await self._door.invoke(session, request)

    async def close(self) -> None:
        """Listen no more."""
        await self.stop_refusing()
        if self._shipping is not None:
            self._shipping.close()
        if self._port is not None:
            self._port.close()
        for each in (*self._clients, self._replicas):
            each.close()


class _ReplicaPort:
    """Counts the connections that make TLS's handshake; who has made it is counted by whoever `accept` leads to."""

    def __init__(self, accept: Callable[[], FrameStream]) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = _REPLICA_LIMITS
        self.draining = False
        self.refused_connections = 0
        self.greetings: dict[Greeting, None] = {}
        self.connections = ()
        self.accept = accept

    def has_place(self, accepted: socket.socket) -> bool:
        """Whether one more connection may stay."""
        return has_descriptors(accepted)

    def close(self) -> None:
        """Give up who makes his handshake yet."""
        self.draining = True
        for greeting in list(self.greetings):
            greeting.give_up()
