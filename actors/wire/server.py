"""The listening side: connections in, commands to handlers, answers out.

One event loop, one thread: handlers run on it in the order in which a connection's requests arrive
(`server_connection`). No peer takes more than `ServerLimits` gives it, and all together no more than there is room for.
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
from raymq.actors.wire import own_protocol
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.limits import ServerLimits
from raymq.actors.wire.reader import make_scratch
from raymq.actors.wire.room import RequestRoom
from raymq.actors.wire.server_connection import Authorize, Handler, ServerConnection
from raymq.actors.wire.tls_listener import Greeting, TlsListener

_SWEEP_SECONDS = 1.0
#: While there is no room for other frames, one of which nothing comes for so long loses its connection.
_STILL_SECONDS = 5.0
#: Of the files that the process may open a share is kept for others than connections, at least so many.
_KEPT_SHARE = 8
_LEAST_KEPT_FILES = 96
#: A process that has room for fewer connections is not worth being asked.
_LEAST_PLACES = 2
_ACCEPTED_AT_ONCE = 16
#: So many turns of the loop a connection that was accepted takes at most until it is known here, and closed.
_ACCEPTING_TURNS = 5
_WAITING_CONNECTIONS = 1024
#: So many of those that wait for room look again at a time.
_WOKEN = 64


def bind(host: str, port: int, *, is_chosen: bool = False) -> socket.socket:
    """A socket bound to an address, not yet listening; port 0 takes any free one. Raises OSError if it is taken.

    A port that `is_chosen` among many is taken by one process only. One to come back to may be bound by two at once,
    of which one listens: a restart takes it though its connections of before have not ended yet.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Where the protocol is not named asyncio sets no TCP_NODELAY: a second small answer would wait for TCP's
    # acknowledgement of the first, up to 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if is_chosen:
            bound.bind((host, port))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart comes back to its port at once
        if not is_chosen:
            bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


class Server:
    """Listens on one address and serves `handlers`. Made, started and stopped on its event loop."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        limits: ServerLimits | None = None,
        authorize: Authorize | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.handlers: Mapping[int, Handler] = {RequestCode.AGREE_VERSIONS: own_protocol.agreed_answer, **handlers}
        self.limits = limits or ServerLimits()
        self.authorize = authorize
        self.connections: set[ServerConnection] = set()
        #: Those that are to make TLS's handshake first, in the order in which they came.
        self.greetings: dict[Greeting, None] = {}
        #: Those that are not read from until there is room.
        self.waiting_for_room: dict[ServerConnection, None] = {}
        #: How many connections were closed because there were too many.
        self.refused_connections = 0
        self.draining = self.has_stopped = False
        self.loop = asyncio.get_running_loop()
        #: Where all connections read into, one after the other.
        self.scratch = make_scratch()
        self._tls = tls
        self._waking = False
        self.room = RequestRoom(self.limits.total_request_bytes, self.loop.time)
        self._left = asyncio.Event()
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Listen on a socket that `bind` made.

        Raises:
            OSError: another process listens there.
            InvalidInput: this process may open so few files that hardly a connection could be accepted.
        """
        _check_files(bound)
        await self.listen(bound)
        self._sweeper = self.loop.create_task(self._sweep())

    async def listen(self, bound: socket.socket) -> None:
        """Listen on one more socket; raises OSError as `start`."""
        if self._tls is not None:
            bound.setblocking(False)
            bound.listen(_WAITING_CONNECTIONS)
            self._listeners.append(TlsListener(self, bound, self._tls))
            return
        # asyncio accepts as many at once as it is told may wait, before it looks at one of them.
        self._listeners.append(await self.loop.create_server(self.accept, sock=bound, backlog=_ACCEPTED_AT_ONCE))
        bound.listen(_WAITING_CONNECTIONS)

    def drain(self) -> None:
        """Accept no more connections; every new request is answered with GO_AWAY from now on."""
        if self.draining:
            return
        self.draining = True
        for listener in self._listeners:
            for listening in listener.sockets:
                self.loop.remove_reader(listening.fileno())
        # asyncio forgets, without closing it, what it has accepted and not looked at when its listener closes.
        self._close_listeners(_ACCEPTING_TURNS)

    def _close_listeners(self, turns: int) -> None:
        """So many turns of the loop from now."""
        if turns:
            self.loop.call_soon(self._close_listeners, turns - 1)
            return
        for listener in self._listeners:
            listener.close()

    async def stop(self) -> None:
        """`drain`, then give what is under way its time to be answered, and close every connection."""
        self.drain()
        deadline = self.loop.time() + self.limits.drain_seconds
        if under_way := [task for connection in self.connections for task in connection.tasks]:
            await asyncio.wait(under_way, timeout=self.limits.drain_seconds)
        self.has_stopped = True  # what was accepted and is not known here yet is closed as soon as it is
        for greeting in list(self.greetings):
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
        """The protocol of a connection that is being made."""
        return ServerConnection(self)

    def has_place(self, accepted: socket.socket | None) -> bool:
        """Whether one more connection may stay."""
        return len(self.connections) < self.limits.connections and (accepted is None or has_descriptors(accepted))

    def left(self, connection: ServerConnection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self.waiting_for_room.pop(connection, None)
        self._left.set()

    def give_back(self, count: int) -> None:
        """A request that held so many bytes is answered; who waited for room goes on."""
        self.room.give_back(count)
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Have those that wait for room look again soon."""
        if self.waiting_for_room and self.room.is_there() and not self._waking:
            self._waking = True
            self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        """A few, in the order in which they came; more of them only if one of these went on."""
        self._waking = went_on = False
        for connection in list(itertools.islice(self.waiting_for_room, _WOKEN)):
            del self.waiting_for_room[connection]
            connection.go_on()  # who still has to wait does so behind the others
            went_on |= connection not in self.waiting_for_room
        if went_on:
            self.wake_waiting()

    async def _sweep(self) -> None:
        limits = self.limits
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, limits.frame_seconds / 4, limits.idle_seconds / 4))
            now = self.loop.time()
            slow = self.room.late() if self.waiting_for_room else None
            for connection in list(self.connections):
                begun = connection.frame_begun
                late = begun is not None and now - begun > limits.frame_seconds
                if self.waiting_for_room and begun is not None:
                    # What stands still while others wait holds room that they need.
                    late |= connection is slow or now - connection.last_read > _STILL_SECONDS
                if late or now - connection.last_read > limits.idle_seconds:
                    connection.close()
            if slow is not None:
                self.room.end_turn()
            self.wake_waiting()


def has_descriptors(accepted: socket.socket) -> bool:
    """Whether enough are left of them, beside that of a connection that was accepted last.

    The system gives the lowest free one: one among the last ones says that they run out.
    """
    return accepted.fileno() < _files_for_connections()[0]


def _files_for_connections() -> tuple[float, float]:
    """Below which descriptor a connection may stay, and how many files this process may open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return math.inf, math.inf
    return most - max(_LEAST_KEPT_FILES, most // _KEPT_SHARE), most


def _check_files(bound: socket.socket) -> None:
    """InvalidInput if no connection could be accepted, or hardly one."""
    free, most = _files_for_connections()
    lowest = os.dup(bound.fileno())
    os.close(lowest)
    if lowest + _LEAST_PLACES > free:
        least = lowest + _LEAST_KEPT_FILES + _LEAST_PLACES
        raise InvalidInput("RLIMIT_NOFILE", f"at least {least} open files (ulimit -n), for connections too", most)
