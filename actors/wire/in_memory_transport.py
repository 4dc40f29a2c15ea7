"""The fallback transport of a server: a method call instead of a socket.

Each session of a caller is a connection of the server like any other, but its bytes pass through memory. So limits,
order, authorization, draining and the encoding of fields are the same, and state that belongs to a connection
(membership, locks, parked requests) belongs to the session until it has been idle for as long as a socket may be. The
server's own requests do not reach the client of a session, because the transport carries only answers.
"""

from __future__ import annotations

import asyncio
import functools

from raymq.actors.errors import ConnectionLost
from raymq.actors.wire import frame
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.frame_reader import FrameReader
from raymq.actors.wire.server import Server
from raymq.actors.wire.server_connection import ServerConnection

#: A waiting caller occupies one of the actor's threads, so a request is parked no longer than this.
PARK_SECONDS = 1.0


class InMemoryTransport:
    """The transport's sessions at one server. Used on the server's loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: dict[str, _Session] = {}

    async def invoke(self, session: str, request: Command) -> Command:
        """Carry out `request` and return the answer, whatever its code.

        A one-way request is answered by an empty SUCCESS.

        Args:
            session: any text that names the caller; its requests are carried out in the order of the calls.

        Raises:
            ConnectionLost: the server has its maximum of connections, or ended the session before it answered.
        """
        known = self._sessions.get(session)
        if known is None or known.closed:
            known = _Session(self._server, session)
            if known.closed:
                raise ConnectionLost(session, "the server has reached its limit of connections")
            self._sessions[session] = known
            known.connection.add_close_callback(functools.partial(self._forget, session, known))
        return await known.request(request)

    def _forget(self, name: str, session: _Session) -> None:
        if self._sessions.get(name) is session:
            del self._sessions[name]


class _Session:
    def __init__(self, server: Server, name: str) -> None:
        self.connection = ServerConnection(server, park_seconds=PARK_SECONDS, accepts_early_answers=False)
        self._max_frame_bytes = server.limits.frame_bytes
        self._transport = _MemorySocket(self.connection, server.loop, name, server.limits.answer_bytes)
        self._feeding = asyncio.Lock()
        self._opaque = 0
        self.connection.connection_made(self._transport)

    @property
    def closed(self) -> bool:
        return self._transport.is_closing()

    async def request(self, request: Command) -> Command:
        self._opaque = self._opaque % frame.MAX_OPAQUE + 1
        request.opaque = self._opaque
        data = memoryview(frame.encode(request, self._max_frame_bytes) + request.with_joined_body().body)
        answer = self._transport.expect(request.opaque)
        async with self._feeding:
            while data:
                await self._transport.readable.wait()
                buffer = self.connection.get_buffer(-1)
                count = min(len(buffer), len(data))
                buffer[:count] = data[:count]
                data = data[count:]
                self.connection.buffer_updated(count)
        if request.is_oneway:
            answer.cancel()
            return request.response(ResponseCode.SUCCESS)
        return await answer


class _MemorySocket(asyncio.Transport):
    """A transport that decodes the bytes that a connection writes into commands.

    Reading is paused and resumed like a socket's.
    """

    def __init__(
        self, connection: ServerConnection, loop: asyncio.AbstractEventLoop, name: str, max_frame_bytes: int
    ) -> None:
        super().__init__({"peername": (name, 0)})
        self.readable = asyncio.Event()
        self.readable.set()
        self._connection = connection
        self._loop = loop
        self._name = name
        self._reader = FrameReader(max_frame_bytes)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._closing = False

    def expect(self, opaque: int) -> asyncio.Future[Command]:
        """Return a future of the answer with that opaque."""
        future = self._waiting[opaque] = self._loop.create_future()
        future.add_done_callback(lambda _: self._waiting.pop(opaque, None))
        if self._closing:
            future.set_exception(ConnectionLost(self._name, "the session was closed"))
        return future

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for command in self._reader.feed(data):
            future = self._waiting.get(command.opaque)
            if command.is_response and future is not None and not future.done():
                future.set_result(command.with_joined_body())

    def is_reading(self) -> bool:
        return self.readable.is_set()

    def pause_reading(self) -> None:
        self.readable.clear()

    def resume_reading(self) -> None:
        self.readable.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, because nothing is buffered here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self.readable.set()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionLost(self._name, "the session was closed"))
            self._loop.call_soon(self._connection.connection_lost, None)
