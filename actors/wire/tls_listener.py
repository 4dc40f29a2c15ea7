"""A listening socket whose connections make TLS's handshake first. Few are that at a time, and none for long.

asyncio's own server would tell nobody of a connection before the handshake is made: it takes a descriptor and 256 KiB
then, for a minute if its peer says nothing, beyond all limits. So here each is counted as soon as it is accepted. Where
there are too many the one that has waited longest is given up: who speaks has made the handshake long before that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sized
from typing import Final, Protocol

from raymq.actors.wire.limits import ServerLimits

_ACCEPTED_AT_ONCE: Final = 16
#: Where no descriptor or memory is left, it is tried again so much later.
_AGAIN_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class Greeter(Protocol):
    """What it needs of its server."""

    loop: asyncio.AbstractEventLoop
    limits: ServerLimits
    draining: bool
    refused_connections: int
    #: Those that make the handshake, in the order in which they came.
    greetings: dict[Greeting, None]

    @property
    def connections(self) -> Sized:
        """Those that have made it, as far as they count."""

    def has_place(self, accepted: socket.socket) -> bool:
        """Whether one more connection may stay."""

    def accept(self) -> asyncio.BaseProtocol:
        """The protocol of a connection whose handshake is about to be made."""


class TlsListener:
    """Used on the server's loop, as an `asyncio.Server` would be.

    Attributes:
        sockets: the one that it listens on.
    """

    def __init__(self, server: Greeter, listening: socket.socket, tls: ssl.SSLContext) -> None:
        """`listening`: one that listens, and blocks nobody; it is closed with this."""
        self.sockets = (listening,)
        self._server = server
        self._listening = listening
        self._tls = tls
        self._again: asyncio.TimerHandle | None = None
        self._go_on()

    def close(self) -> None:
        """Accept no more. May be called again."""
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
                _log.error("no connection is accepted now: %s", error)
                self._server.loop.remove_reader(self._listening.fileno())
                self._again = self._server.loop.call_later(_AGAIN_SECONDS, self._go_on)
                return
            accepted.setblocking(False)
            self._greet(accepted)

    def _greet(self, accepted: socket.socket) -> None:
        server = self._server
        counted = len(server.connections) + len(server.greetings)
        if has_place := server.has_place(accepted) and counted < server.limits.connections:
            greeting = Greeting(server, accepted, self._tls)
            server.greetings[greeting] = None
        else:
            server.refused_connections += 1
            accepted.close()
        if server.greetings and (not has_place or len(server.greetings) > server.limits.handshakes):
            next(iter(server.greetings)).give_up()


class Greeting:
    """A connection that makes its handshake."""

    def __init__(self, server: Greeter, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        self._server = server
        self._accepted = accepted
        self._tls = tls
        self._begun = False
        self._making: asyncio.Task[None] | None = server.loop.create_task(self._make())
        self._making.add_done_callback(self._ended)

    def give_up(self) -> None:
        """Its peer has said nothing for too long, or the server stops."""
        self._server.greetings.pop(self, None)
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
        except Exception as error:  # noqa: BLE001 - whatever its peer says instead, it is no connection
            _log.debug("no handshake with a peer: %s", error)
            error.__traceback__ = None  # nor may it keep what has failed

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._making = None  # no circle of objects may keep what a handshake takes, 256 KiB, until it is looked for
        self._server.greetings.pop(self, None)
        if not self._begun:
            self._accepted.close()
