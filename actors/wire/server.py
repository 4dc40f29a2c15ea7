"""The listening server: it accepts connections, passes commands to handlers, and sends the answers.

It uses one event loop and one thread: handlers run on the loop in the order in which a connection's requests arrive
(`server_connection`). No peer may use more than `ServerLimits` allows, and all peers together no more than the limits
on total memory and connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import resource
import socket
import ssl
from collections.abc import Mapping

from raymq.actors.errors import InvalidInput
from raymq.actors.wire import protocol_version
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame_reader import make_scratch
from raymq.actors.wire.request_latency import RequestLatency
from raymq.actors.wire.request_memory_budget import RequestMemoryBudget
from raymq.actors.wire.server_connection import Authorize, Handler, ServerConnection
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls_listener import PendingHandshake, TlsListener

_SWEEP_SECONDS = 1.0
#: While connections wait for memory, a partly received frame that gets no bytes for so long loses its connection.
_STILL_SECONDS = 5.0
#: One part in so many of the process's file descriptors is reserved for other uses than connections, and at least the
#: number below.
_KEPT_SHARE = 8
_LEAST_KEPT_FILES = 96
#: A process with descriptors for fewer connections refuses to start.
_LEAST_PLACES = 2
_ACCEPTED_AT_ONCE = 16
#: asyncio needs at most so many iterations of the loop from accepting a connection to the call of `connection_made`.
_ACCEPTING_TURNS = 5
_WAITING_CONNECTIONS = 1024
#: So many connections that wait for memory are resumed at a time.
_WOKEN = 64


def bind(host: str, port: int, *, is_chosen: bool = False) -> socket.socket:
    """Return a socket bound to an address, not yet listening; port 0 means any.

    A port that `is_chosen` from a range of candidates is bound without SO_REUSEADDR, so that only one process can take
    it. A fixed port may be bound by two processes at once, of which only one can listen: so a restarted server can bind
    its port although connections of its former process have not ended yet.

    Raises:
        OSError: the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket's protocol is given: without it a second small answer would wait for
    # TCP's acknowledgement of the first, up to 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if is_chosen:
            bound.bind((host, port))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted server can bind its old port at once
        if not is_chosen:
            bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


class Server:
    """A server that listens on one address and serves `handlers`.

    It is created, started and stopped on its event loop.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        limits: ServerLimits | None = None,
        authorize: Authorize | None = None,
        tls: ssl.SSLContext | None = None,
        latency: RequestLatency | None = None,
    ) -> None:
        self.handlers: Mapping[int, Handler] = {
            RequestCode.AGREE_VERSIONS: protocol_version.agree_versions_answer,
            **handlers,
        }
        self.limits = limits or ServerLimits()
        self.authorize = authorize
        self.latency = latency
        self.connections: set[ServerConnection] = set()
        #: Connections whose TLS handshake is not complete, in the order of their arrival.
        self.pending_handshakes: dict[PendingHandshake, None] = {}
        #: Connections that are not read from until memory is free, in order.
        self.waiting_for_memory: dict[ServerConnection, None] = {}
        #: How many connections were refused because a limit was reached.
        self.refused_connections = 0
        self.draining = self.has_stopped = False
        self.loop = asyncio.get_running_loop()
        #: The read buffer that all connections share, one after the other.
        self.scratch = make_scratch()
        self._tls = tls
        self._waking = False
        self.room = RequestMemoryBudget(self.limits.total_request_bytes, self.loop.time)
        self._left = asyncio.Event()
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Listen on a socket that `bind` returned.

        Raises:
            OSError: another process listens there.
            InvalidInput: this process may open too few files to accept connections.
        """
        _check_files(bound)
        await self.listen(bound)
        self._sweeper = self.loop.create_task(self._sweep())

    async def listen(self, bound: socket.socket) -> None:
        """Listen on one more socket.

        Raises:
            OSError: as `start`.
        """
        if self._tls is not None:
            bound.setblocking(False)
            bound.listen(_WAITING_CONNECTIONS)
            self._listeners.append(TlsListener(self, bound, self._tls))
            return
        # asyncio accepts up to `backlog` connections at once before it serves one of them.
        self._listeners.append(await self.loop.create_server(self.accept, sock=bound, backlog=_ACCEPTED_AT_ONCE))
        bound.listen(_WAITING_CONNECTIONS)

    def drain(self) -> None:
        """Accept no more connections, and answer every new request with GO_AWAY from now on."""
        if self.draining:
            return
        self.draining = True
        for listener in self._listeners:
            for listening in listener.sockets:
                self.loop.remove_reader(listening.fileno())
        # When its listener closes, asyncio drops accepted sockets that it has not handled yet without closing them.
        self._close_listeners(_ACCEPTING_TURNS)

    def _close_listeners(self, turns: int) -> None:
        """Close the listeners after so many iterations of the loop."""
        if turns:
            self.loop.call_soon(self._close_listeners, turns - 1)
            return
        for listener in self._listeners:
            listener.close()

    async def stop(self) -> None:
        """Call `drain`, wait for requests under way, and close every connection.

        The wait for the requests is at most `drain_seconds` long.
        """
        self.drain()
        deadline = self.loop.time() + self.limits.drain_seconds
        if under_way := [task for connection in self.connections for task in connection.tasks]:
            await asyncio.wait(under_way, timeout=self.limits.drain_seconds)
        self.has_stopped = True  # connections that were accepted but not made yet are closed when they are made
        for greeting in list(self.pending_handshakes):
            greeting.give_up()
        for connection in list(self.connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self.connections:
                    self._left.clear()
                    await self._left.wait()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.cancel()
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        self._close_listeners(0)

    def accept(self) -> ServerConnection:
        """Return the protocol object of a new connection."""
        return ServerConnection(self)

    def has_capacity(self, accepted: socket.socket | None) -> bool:
        """Return True if one more connection may stay open."""
        return len(self.connections) < self.limits.connections and (accepted is None or has_free_descriptors(accepted))

    def left(self, connection: ServerConnection) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        self.waiting_for_memory.pop(connection, None)
        self._left.set()

    def release_memory(self, count: int) -> None:
        """Release the memory of an answered request and resume connections that wait for it."""
        self.room.release_memory(count)
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Schedule the connections that wait for memory to check again."""
        if self.waiting_for_memory and self.room.has_room() and not self._waking:
            self._waking = True
            self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Resume the first few waiting connections, in the order in which they began to wait.

        Continue with further connections only if one of these could proceed.
        """
        self._waking = went_on = False
        for connection in list(itertools.islice(self.waiting_for_memory, _WOKEN)):
            del self.waiting_for_memory[connection]
            connection.resume()  # a connection that has to wait again goes to the end
            went_on |= connection not in self.waiting_for_memory
        if went_on:
            self.wake_waiting()

    async def _sweep(self) -> None:
        limits = self.limits
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, limits.frame_seconds / 4, limits.idle_seconds / 4))
            now = self.loop.time()
            slow = self.room.late() if self.waiting_for_memory else None
            for connection in list(self.connections):
                begun = connection.frame_begun
                late = begun is not None and now - begun > limits.frame_seconds
                if self.waiting_for_memory and begun is not None:
                    # A stalled frame holds memory that the waiting connections need.
                    late |= connection is slow or now - connection.last_read > _STILL_SECONDS
                if late or now - connection.last_read > limits.idle_seconds:
                    connection.close()
            if slow is not None:
                self.room.end_turn()
            self.wake_waiting()


def has_free_descriptors(accepted: socket.socket) -> bool:
    """Return True if enough descriptors are free besides that of the newest connection.

    The operating system assigns the lowest free descriptor, so a high one shows that few are left.
    """
    return accepted.fileno() < _files_for_connections()[0]


def _files_for_connections() -> tuple[float, float]:
    """Return the descriptor limit of connections, and the process's limit of open files.

    A connection may stay open if its descriptor is below the first number.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return math.inf, math.inf
    return most - max(_LEAST_KEPT_FILES, most // _KEPT_SHARE), most


def _check_files(bound: socket.socket) -> None:
    """Raise InvalidInput if this process may open too few files to accept connections."""
    free, most = _files_for_connections()
    lowest = os.dup(bound.fileno())
    os.close(lowest)
    if lowest + _LEAST_PLACES > free:
        least = lowest + _LEAST_KEPT_FILES + _LEAST_PLACES
        raise InvalidInput("RLIMIT_NOFILE", f"at least {least} open files (ulimit -n), for connections too", most)
