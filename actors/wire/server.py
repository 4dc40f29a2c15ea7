"""The listening side: connections in, commands to handlers, answers out.

One event loop, one thread: handlers run on it in the order in which a connection's requests arrive. A handler returns
the answer, or an awaitable of it (the connection goes on reading meanwhile), or None for "no answer". What it raises
becomes the answer of that error. Whatever can block must be awaited from another thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from raymq.actors.errors import ProtocolError, RayMQError
from raymq.actors.wire import faults, frame
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import FLAG_ONEWAY, Command, FrameReader

Answer = Command | None
Handler = Callable[["ServerConnection", Command], Answer | Awaitable[Answer]]

#: A connection that has begun a frame has this long to finish it.
FRAME_SECONDS = 60.0
#: A connection that says nothing for this long is closed (RocketMQ's serverChannelMaxIdleTimeSeconds).
IDLE_SECONDS = 120.0
_SWEEP_SECONDS = 5.0

_log = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, not yet listening; port 0 takes any free one. Raises OSError if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart comes back to its port at once
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


class ServerConnection(asyncio.Protocol):
    """One accepted connection. Used on the server's loop only."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = FrameReader(server.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._opaque = 0
        self.last_read = 0.0
        self.frame_begun: float | None = None
        #: Called once when the connection is gone; the place to free what belongs to it.
        self.on_close: list[Callable[[], None]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.last_read = self._server.loop.time()
        self._server.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        for task in self._tasks:
            task.cancel()
        for callback in self.on_close:
            callback()
        self.on_close.clear()

    def pause_writing(self) -> None:
        """The peer reads slower than we answer: take no more of its requests until it caught up."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.last_read = self._server.loop.time()
        try:
            for command in self._reader.feed(data):
                if not command.is_response:
                    self._serve(command)
        except ProtocolError as error:
            _log.warning("closing a connection: %s", error)
            self.close()
            return
        self.frame_begun = (self.frame_begun or self.last_read) if self._reader.inside_a_frame else None

    def send(self, command: Command) -> None:
        """Write a command; silently nothing once the peer is gone."""
        if self._transport is not None:
            head = frame.encode(command)
            if len(command.body):
                self._transport.writelines([head, command.body])
            else:
                self._transport.write(head)

    def push(self, command: Command) -> None:
        """Send the server's own request, one-way."""
        self._opaque += 1
        command.opaque = self._opaque
        command.flag |= FLAG_ONEWAY
        self.send(command)

    def close(self) -> None:
        """Close at once, unsent answers included."""
        if self._transport is not None:
            self._transport.abort()

    def _serve(self, request: Command) -> None:
        handler = self._server.handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            self._answer(request, request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        try:
            result = handler(self, request)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is the answer
            self._fail(request, error)
            return
        if inspect.isawaitable(result):
            task = self._server.loop.create_task(self._finish(request, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._answer(request, result)

    async def _finish(self, request: Command, result: Awaitable[Answer]) -> None:
        try:
            answer = await result
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(request, error)
            return
        self._answer(request, answer)

    def _fail(self, request: Command, error: Exception) -> None:
        if not isinstance(error, RayMQError):
            _log.exception("request %d failed", request.code, exc_info=error)
        self._answer(request, faults.to_response(request, error))

    def _answer(self, request: Command, answer: Answer) -> None:
        if answer is None or request.is_oneway:
            return
        try:
            self.send(answer)
        except RayMQError as error:
            self.send(faults.to_response(request, error))


class Server:
    """Listens on one address and serves `handlers`. Made, started and stopped on its event loop."""

    def __init__(self, handlers: Mapping[int, Handler], *, max_frame_bytes: int = frame.MAX_FRAME_BYTES) -> None:
        self.handlers = handlers
        self.max_frame_bytes = max_frame_bytes
        self.connections: set[ServerConnection] = set()
        self.loop = asyncio.get_running_loop()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Listen on a socket that `bind` made. Raises OSError if another process listens there."""
        self._listener = await self.loop.create_server(lambda: ServerConnection(self), sock=bound, backlog=1024)
        self._sweeper = self.loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self.loop.time()
            for connection in list(self.connections):
                begun = connection.frame_begun
                if now - connection.last_read > IDLE_SECONDS or (begun is not None and now - begun > FRAME_SECONDS):
                    connection.close()
