"""One accepted connection: it passes commands to handlers and sends the answers.

Handlers run on the server's event loop, in the order of a connection's requests, and must not block. A handler returns
the answer, an awaitable of it (the connection reads on meanwhile), or None for "no answer"; an exception is answered as
an error. Requests that arrived before the connection ended are still carried out, but not answered; only requests that
may wait for long, and whose result matters only to the client, are cancelled with the connection.

No peer may use more than `ServerLimits` allows. A connection is not read from while its peer leaves answers unread,
while too many bytes of its requests are under way, or when it has used its time slice of the loop; the bytes that the
peer has sent stay in the socket.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

from raymq.actors.errors import ConnectionLost, InvalidInput, ProtocolError, RayMQError
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire import error_codec, protocol_version
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import FLAG_ONEWAY, Command, Serialization
from raymq.actors.wire.frame_reader import FrameReader
from raymq.actors.wire.frame_writer import FrameWriter
from raymq.actors.wire.loop_queue import cancel_in_batches
from raymq.actors.wire.residual_bytes import ResidualBytes
from raymq.actors.wire.server_interface import ServerInterface
from raymq.actors.wire.server_requests import ServerRequests
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture
from raymq.actors.wire.tcp_pacing import disable_tcp_pacing

Answer = Command | None
Handler = Callable[["ServerConnection", Command], Answer | Awaitable[Answer]]
#: Returns if a request is allowed, else raises the error to answer, such as PermissionDenied.
Authorize = Callable[["ServerConnection", Command], None]

#: One in so many refused connections is logged.
_REFUSALS_A_LINE = 100
#: The bytes that a request counts besides its body, for the Python objects that represent it.
_REQUEST_BYTES = 1024
#: The objects decoded from a header, such as a list of tags or queues, take so many times the header's bytes beyond
#: `_REQUEST_BYTES`.
_HEADER_GROWTH = 8

#: Looked up once: in Python 3.11 an enum's member costs a tenth of a microsecond.
_SUCCESS = int(ResponseCode.SUCCESS)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def discard_body(handler: Handler) -> Handler:
    """Return a handler that drops the request's body, for requests that may wait long.

    Such requests have no body by definition, so bytes that a client sends as one are not kept. Their results matter
    only to the client, so they are cancelled when the connection ends.
    """

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        request.body = b""
        return handler(connection, request)

    serve.waits = True  # type: ignore[attr-defined]
    return serve


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection. Used on the server's loop only."""

    def __init__(
        self, server: ServerInterface, *, park_seconds: float = math.inf, accepts_early_answers: bool = True
    ) -> None:
        #: No request of this connection may be parked for longer, whatever time it specifies.
        self.park_seconds = park_seconds
        #: Whether a request that allows it may get several answers.
        self.accepts_early_answers = accepts_early_answers
        self._server = server
        limits = server.limits
        self._reader = FrameReader(limits.frame_bytes, limits.header_bytes, server.scratch, limits.json_header_bytes)
        self._transport: asyncio.Transport | None = None
        self._writer: FrameWriter | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        #: The subset of the tasks that are cancelled when the connection ends.
        self._parked: set[asyncio.Task[None]] = set()
        #: Set while requests that a broken connection had delivered are carried out.
        self._unread: ResidualBytes | None = None
        self._own_requests = ServerRequests()
        self._writable = asyncio.Event()
        self._writable.set()
        self._request_bytes = 0
        self._is_arriving = False
        self._yielding = False
        self._ended = False
        #: The other end, "host:port".
        self.peer = ""
        self.last_read = 0.0
        self.frame_begun: float | None = None
        self._at_end: list[Callable[[], None]] = []

    @property
    def tasks(self) -> frozenset[asyncio.Future[Any]]:
        """Return the requests under way whose handlers wait for something."""
        return frozenset(self._tasks)

    @property
    def is_gone(self) -> bool:
        """Return True if the connection is lost, so that no answer can be sent.

        Requests that it had delivered may still be carried out.
        """
        return self._transport is None

    @property
    def writable(self) -> asyncio.Event:
        """Return the event that is set while the peer reads, and after the end."""
        return self._writable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's class does not derive from asyncio.Transport
        if self._server.has_stopped:
            transport.close()
            return
        if not self._server.has_capacity(transport.get_extra_info("socket")):
            self._server.refused_connections += 1
            if self._server.refused_connections % _REFUSALS_A_LINE == 1:
                _log.warning("closing connections: %d are open", len(self._server.connections))
            transport.close()
            return
        self._transport = transport
        self._writer = FrameWriter(transport, self._server.loop, self._server.limits.answer_bytes)
        disable_tcp_pacing(transport.get_extra_info("socket"))
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]  # the peer may have disconnected already
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.last_read = self._server.loop.time()
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return  # the connection was refused
        # After an orderly end all bytes have been read; if the server closed the connection, the rest is not needed.
        self._unread = None if error is None else ResidualBytes(self._transport)
        self._transport = self._writer = None
        self.frame_begun = None
        self._writable.set()
        cancel_in_batches(self._server.loop, self._parked)
        self._own_requests.lost(self.peer)
        if self._unread is None:
            self._end()
        else:
            self.resume()

    def pause_writing(self) -> None:
        if self._writer is not None:
            self._writer.pause()

    def resume_writing(self) -> None:
        self.last_read = self._server.loop.time()  # the peer is alive, since it reads
        if self._writer is None:
            return
        self._writer.resume()
        if not self._writable.is_set() and self._writer.unsent_bytes <= self._server.limits.write_low_bytes:
            self._writable.set()
            self._go_on()

    def get_buffer(self, _: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_read = monotonic()  # event loops use this clock, too
        if not self._answer_promptly(nbytes):
            self._reader.received(nbytes)
            if not self._yielding:
                self._go_on()

    def send(self, command: Command) -> None:
        """Write a command; do nothing if the connection is lost."""
        if self._writer is not None:
            self._writer.write(command)
            if self._writer.unsent_bytes > self._server.limits.write_high_bytes:
                self._writable.clear()

    @property
    def idle_writer(self) -> FrameWriter | None:
        """Return the writer if it can write a small frame at once, else None.

        It is None while other bytes are being written, and after the connection is lost.
        """
        writer = self._writer
        return writer if writer is not None and writer.is_idle else None

    def push(self, command: Command) -> None:
        """Send a one-way request of the server to the client."""
        self._own_requests.number(command)
        command.flag |= FLAG_ONEWAY
        self.send(command)

    async def request(self, command: Command, timeout: float) -> Command:
        """Send a request of the server and return the client's answer, whatever its code.

        Raises:
            Timeout: no answer within `timeout` seconds.
            ConnectionLost: the connection is lost, or was lost before the answer.
        """
        if self._transport is None:
            raise ConnectionLost(self.peer, "the client has disconnected")
        return await self._own_requests.ask(command, self.send, self.peer, timeout)

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, after the connection ended and its last request began.

        Call it at once if that is already the case. The callback is the place to free resources that belong to the
        connection.
        """
        if self._ended:
            callback()
        else:
            self._at_end.append(callback)

    def close(self) -> None:
        """Close at once, without sending the answers that are still unsent."""
        if self._transport is not None:
            self._transport.abort()
        elif self._unread is not None:
            self._end()

    def cancel(self) -> None:
        """Call `close`, and cancel the requests that are under way."""
        self.close()
        for task in self._tasks:
            task.cancel()

    def finish(self) -> None:
        """Close the connection after all written bytes have been sent."""
        if self._transport is not None and self._writer is not None:
            self._writer.flush()
            self._transport.close()

    def resume(self) -> None:
        """Check again whether the limits allow this connection to continue."""
        if not self._yielding:
            self._go_on()

    # -- reading -------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Serve arrived requests as far as the limits allow, then resume or pause reading."""
        self._yielding = False
        if self._unread is not None:
            self._serve_unread(self._unread)
            return
        loop = self._server.loop
        begun = loop.time()
        try:
            while self._may_serve() and (command := self._reader.next()) is not None:
                if self._is_arriving:
                    self._arrived()
                self._receive(command)
                if self._reader.is_mid_frame and self._yields(begun):
                    break
        except ProtocolError as error:
            _log.warning("closing the connection of %s: %s", self.peer, error)
            self.close()
        if self._transport is None or self._transport.is_closing():
            return
        admitted = self._may_arrive()
        if not self._yielding and admitted and self._may_serve():
            inside = self._reader.is_mid_frame
            self.frame_begun = (self.frame_begun or self.last_read) if inside else None
            self._server.waiting_for_memory.pop(self, None)
            if not self._transport.is_reading():
                self.last_read = loop.time()  # the pause in reading was the server's
                self._transport.resume_reading()
            return
        self.frame_begun = None
        if not (admitted and self._is_room):
            self._server.waiting_for_memory[self] = None
        if self._transport.is_reading():
            self._transport.pause_reading()

    def _yields(self, begun: float) -> bool:
        """Return True if the connection has used its time slice of the loop.

        It then continues in a later iteration, after the other connections.
        """
        self._yielding = self._server.loop.time() - begun > self._server.limits.slice_seconds
        if self._yielding:
            self._server.loop.call_soon(self._go_on)
        return self._yielding

    def _may_serve(self) -> bool:
        is_open = self._transport is not None and not self._transport.is_closing()
        return (
            (is_open or self._unread is not None)
            and self._writable.is_set()
            and self._request_bytes <= self._server.limits.connection_request_bytes
            and (self._is_arriving or self._is_room)
        )

    @property
    def _is_room(self) -> bool:
        return self._server.room.has_room(for_more=bool(self._request_bytes))

    def _may_arrive(self) -> bool:
        """Account for the bytes of a large frame; return True if more may arrive."""
        reader = self._reader
        if not reader.large_bytes:
            return True
        self._is_arriving = True
        return self._server.room.arriving(
            self,
            reader.memory_bytes,
            reader.next_memory_bytes,
            reader.large_bytes,
            for_more=bool(self._request_bytes),
        )

    def _arrived(self) -> None:
        """Record that no large frame of this connection is arriving any more."""
        self._is_arriving = False
        self._server.room.ended(self)
        self._server.wake_waiting()

    def _serve_unread(self, unread: ResidualBytes) -> None:
        """Carry out the unread requests of a broken connection, within all limits, then end it."""
        begun = self._server.loop.time()
        try:
            while self._may_serve():
                command = self._reader.next()
                if command is None:
                    if not self._may_arrive():
                        break
                    if not unread.read_into(self._reader):
                        self._end()
                        return
                    continue
                if self._is_arriving:
                    self._arrived()
                if not command.is_response:
                    self._serve(command)
                if self._yields(begun):
                    return
        except ProtocolError as error:
            _log.warning("the remaining requests of %s are not carried out: %s", self.peer, error)
            self._end()
            return
        self._server.waiting_for_memory[self] = None

    def _end(self) -> None:
        """Free the resources of the connection, since no more requests come."""
        if self._unread is not None:
            self._unread.close()
            self._unread = None
        self._ended = True
        if self._is_arriving:
            self._arrived()
        for callback in self._at_end:
            callback()
        self._at_end.clear()
        self._leave()

    def _leave(self) -> None:
        """Remove the connection from the server when the last of its requests is done."""
        if self._ended and not self._tasks:
            self._server.left(self)

    def _receive(self, command: Command) -> None:
        if command.is_response:
            self._own_requests.answered(command)
        else:
            self._serve(command)

    # -- serving -------------------------------------------------------------------------------------------------

    def _answer_promptly(self, count: int) -> bool:
        """Answer the bytes just read if they are a single bare request.

        Do it only if no other request of the connection is under way. Return True if the bytes were handled.
        """
        server, writer = self._server, self._writer
        early_request = bare.read_request(server.scratch, count)
        if early_request is None or writer is None or self._tasks or self._reader.is_mid_frame or not writer.is_idle:
            return False
        code, opaque = early_request
        try_answer_inline = getattr(server.handlers.get(code), "try_answer_inline", None)
        if try_answer_inline is None or server.draining or server.authorize is not None or not server.room.has_room():
            return False
        answered = False

        def answer(body: bytes) -> None:
            nonlocal answered
            answered = True
            writer.write_alone(bare.answer(opaque, body))
            if server.latency is not None:
                server.latency.observe(code, _SUCCESS, monotonic() - self.last_read)

        try:
            served = try_answer_inline(server.scratch[bare.HEAD_BYTES : count], answer)
        except Exception as error:  # noqa: BLE001 - a handler's error is the answer
            if answered:
                _log.exception("request %d failed after it was answered", code)
            else:
                self._fail(Command(code, opaque=opaque, serialization=Serialization.MSGPACK), error)
            return True
        if isinstance(served, SyncCallbackFuture):
            self._answer_then(served, _REQUEST_BYTES + count, partial(self._answer_bare, code, opaque, self.last_read))
            return True
        return bool(served)

    def _answer_bare(self, code: int, opaque: int, received_at: float, body: SyncCallbackFuture[bytes]) -> None:
        writer, error = self._writer, body.exception()
        if error is None and writer is not None and writer.is_idle:
            writer.write_alone(bare.answer(opaque, body.result()))
            if self._server.latency is not None:
                self._server.latency.observe(code, _SUCCESS, monotonic() - received_at)
            return
        request = Command(code, opaque=opaque, serialization=Serialization.MSGPACK, received_at=received_at)
        if error is None:
            self._answer(request, request.response(ResponseCode.SUCCESS, body=body.result()))
        else:
            self._fail(request, error)

    def _answer_then(
        self, future: SyncCallbackFuture[_T], memory: int, answer: Callable[[SyncCallbackFuture[_T]], None]
    ) -> None:
        """Call `answer` with the future `future` as soon as it is done.

        If the peer does not read its answers at that time, the call waits until it does. Until then the request counts
        with `memory` bytes.
        """

        def done(future: SyncCallbackFuture[_T]) -> None:
            if self._writable.is_set() or future.cancelled():
                self._finished(future, memory)
                if not future.cancelled():
                    answer(future)
            else:  # many requests that complete together must not pile up answers
                self._tasks.discard(future)
                self._keep(self._server.loop.create_task(later(future)), memory)

        async def later(future: SyncCallbackFuture[_T]) -> None:
            await self._writable.wait()
            answer(future)

        self._request_bytes += memory
        self._server.room.hold(memory)
        self._tasks.add(future)
        future.add_sync_callback(done)

    def _serve(self, request: Command) -> None:
        server = self._server
        request.received_at = self.last_read
        handler = server.handlers.get(request.code)
        if server.draining:
            self._answer(request, error_codec.shutdown_response(request))
            return
        if handler is None:
            self._answer(request, protocol_version.unsupported_response(request))
            return
        waits = getattr(handler, "waits", False)
        if waits and self._transport is None:
            return  # the client that waits for it is gone
        try:
            if request.half:
                raise InvalidInput("header", "text without half surrogate pairs", request.half)
            if server.authorize is not None:
                server.authorize(self, request)
            result = handler(self, request)
        except Exception as error:  # noqa: BLE001 - a handler's error is the answer
            self._fail(request, error)
            return
        if result is None or isinstance(result, Command):
            self._answer(request, result)
            return
        more = max(0, request.header_bytes - _REQUEST_BYTES)
        memory = _REQUEST_BYTES + len(request.body) + _HEADER_GROWTH * more
        if isinstance(result, SyncCallbackFuture):
            self._answer_then(result, memory, lambda future: self._answer_made(request, future))
            return
        task = server.loop.create_task(self._finish(request, result))
        if waits:
            self._parked.add(task)
        self._request_bytes += memory
        server.room.hold(memory)
        self._keep(task, memory)

    def _answer_made(self, request: Command, future: SyncCallbackFuture[Answer]) -> None:
        if (error := future.exception()) is not None:
            self._fail(request, error)
        else:
            self._answer(request, future.result())

    def _keep(self, task: asyncio.Task[None], memory: int) -> None:
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, memory))

    async def _finish(self, request: Command, result: Awaitable[Answer]) -> None:
        try:
            answer = await result
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(request, error)
            return
        await self._writable.wait()  # many parked requests that complete together must not pile up answers
        self._answer(request, answer)

    def _finished(self, task: asyncio.Future[Any], memory: int) -> None:
        self._tasks.discard(task)
        self._parked.discard(task)
        self._request_bytes -= memory
        self._server.release_memory(memory)
        if self._unread is not None or (self._transport is not None and not self._transport.is_reading()):
            self._server.loop.call_soon(self.resume)  # deferred: the code that completed the task may not have finished
        self._leave()

    def _fail(self, request: Command, error: BaseException) -> None:
        if not isinstance(error, RayMQError):
            _log.exception("request %d failed", request.code, exc_info=error)
        self._answer(request, error_codec.error_response(request, error))

    def _answer(self, request: Command, answer: Answer) -> None:
        if answer is None or request.is_oneway:
            return
        latency = self._server.latency
        if latency is not None and request.code in self._server.handlers and request.received_at:
            latency.observe(request.code, answer.code, monotonic() - request.received_at)
        try:
            self.send(answer)
        except Exception as error:  # noqa: BLE001 - nothing was written: the peer gets the error
            if not isinstance(error, RayMQError):
                _log.exception("the answer to request %d cannot be written", request.code, exc_info=error)
            self.send(error_codec.error_response(request, error))
