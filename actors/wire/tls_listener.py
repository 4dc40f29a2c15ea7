"""A listening socket whose connections start with a TLS handshake, with limits on handshakes.

asyncio's own server reports a connection only after its handshake: until then it holds a descriptor and 256 KiB, for a
minute if its peer sends nothing, outside all limits. So this listener counts each connection as soon as it is accepted.
If there are too many, the one with the oldest handshake is closed: a peer that takes part in the handshake has
completed it long before that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sized
from typing import Final, Protocol

from raymq.actors.wire.server_limits import ServerLimits

_ACCEPTED_AT_ONCE: Final = 16
#: If no descriptor or memory is left, the listener accepts again after this time.
_AGAIN_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class HandshakeServer(Protocol):
    """The parts of a server that a TLS listener uses."""

    loop: asyncio.AbstractEventLoop
    limits: ServerLimits
    draining: bool
    refused_connections: int
    #: Connections whose handshake is not complete, in the order of their arrival.
    pending_handshakes: dict[PendingHandshake, None]

    @property
    def connections(self) -> Sized:
        """Return the connections that have completed their handshake and count towards the limit."""

    def has_capacity(self, accepted: socket.socket) -> bool:
        """Return True if one more connection may stay open."""

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol object of a connection whose handshake is about to start."""


class TlsListener:
    """A TLS listener, used on the server's loop in place of an `asyncio.Server`.

    Attributes:
        sockets: a tuple with the listening socket.
    """

    def __init__(self, server: HandshakeServer, listening: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections from `listening`, a non-blocking listening socket.

        The listener closes the socket in `close`.
        """
        self.sockets = (listening,)
        self._server = server
        self._listening = listening
        self._tls = tls
        self._again: asyncio.TimerHandle | None = None
        self._go_on()

    def close(self) -> None:
        """Stop accepting and close the socket. May be called again."""
        if self._again is not None:
            self._again.cancel()
        if self._listening.fileno() >= 0:
            self._server.loop.remove_reader(self._listening.fileno())
        self._listening.close()

    def _go_on(self) -> None:
        self._again = None
        if not self._server.draining:
            self._server.loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("connections cannot be accepted now: %s", error)
                self._server.loop.remove_reader(self._listening.fileno())
                self._again = self._server.loop.call_later(_AGAIN_SECONDS, self._go_on)
                return
            accepted.setblocking(False)
            self._greet(accepted)

    def _greet(self, accepted: socket.socket) -> None:
        server = self._server
        counted = len(server.connections) + len(server.pending_handshakes)
        if has_capacity := server.has_capacity(accepted) and counted < server.limits.connections:
            greeting = PendingHandshake(server, accepted, self._tls)
            server.pending_handshakes[greeting] = None
        else:
            server.refused_connections += 1
            accepted.close()
        if server.pending_handshakes and (
            not has_capacity or len(server.pending_handshakes) > server.limits.handshakes
        ):
            next(iter(server.pending_handshakes)).give_up()


class PendingHandshake:
    """A connection whose TLS handshake is under way."""

    def __init__(self, server: HandshakeServer, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        self._server = server
        self._accepted = accepted
        self._tls = tls
        self._begun = False
        self._making: asyncio.Task[None] | None = server.loop.create_task(self._make())
        self._making.add_done_callback(self._ended)

    def give_up(self) -> None:
        """Cancel the handshake, because its peer is too slow or the server stops."""
        self._server.pending_handshakes.pop(self, None)
        if self._making is not None:
            self._making.cancel()

    async def _make(self) -> None:
        self._begun = True
        server = self._server
        try:
            await server.loop.connect_accepted_socket(
                server.accept,
                self._accepted,
                ssl=self._tls,
                ssl_handshake_timeout=server.limits.handshake_seconds,
            )
        except Exception as error:  # noqa: BLE001 - any failure: the connection is not accepted
            _log.debug("the TLS handshake with a peer failed: %s", error)
            error.__traceback__ = None  # so that the traceback keeps no objects of the handshake

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._making = None  # breaks a reference cycle that would keep 256 KiB until garbage collection
        self._server.pending_handshakes.pop(self, None)
        if not self._begun:
            self._accepted.close()
