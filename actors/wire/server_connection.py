"""One accepted connection: commands to handlers, answers out.

Handlers run on the server's event loop, in the order of a connection's requests, and must not block. One returns the
answer, an awaitable of it (the connection reads on), or None for "no answer"; what it raises is answered as an error.
What has arrived before the end of a connection is carried out, and not answered; only what may wait for long, and is
for who asked, ends with the connection.

No peer takes more than `ServerLimits` gives it. A connection is not read from while its peer leaves answers unread,
while it has too much under way, or when it has had its slice of the loop's time; what it has sent stays in its socket.
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
from raymq.actors.wire import faults, own_protocol
from raymq.actors.wire import fixed_frame as bare
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import FLAG_ONEWAY, Command, Serialization
from raymq.actors.wire.host import Host
from raymq.actors.wire.own_requests import OwnRequests
from raymq.actors.wire.prompt_future import PromptFuture
from raymq.actors.wire.reader import FrameReader
from raymq.actors.wire.same_host import end_pacing
from raymq.actors.wire.unread import Unread
from raymq.actors.wire.wakeups import cancel_in_slices
from raymq.actors.wire.writing import FrameWriter

Answer = Command | None
Handler = Callable[["ServerConnection", Command], Answer | Awaitable[Answer]]
#: Lets a request pass or raises what is answered instead, such as PermissionDenied.
Authorize = Callable[["ServerConnection", Command], None]

#: Of so many refused connections one is logged.
_REFUSALS_A_LINE = 100
#: What a request counts beside its body, for the objects that stand for it.
_REQUEST_BYTES = 1024
#: What is read of a header, such as a list of tags or queues, takes so many times the bytes that are beyond the first.
_HEADER_GROWTH = 8

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def without_body(handler: Handler) -> Handler:
    """A handler of requests that may wait for long and have no body: what a client sends as one is not kept for it.

    They are for who asked: they end with the connection.
    """

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        request.body = b""
        return handler(connection, request)

    serve.waits = True  # type: ignore[attr-defined]
    return serve


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection. Used on the server's loop only."""

    def __init__(self, server: Host, *, park_seconds: float = math.inf, takes_early_answers: bool = True) -> None:
        #: No request of this connection may be parked for longer, whatever it asks for.
        self.park_seconds = park_seconds
        #: Whether a request that allows it may have several answers.
        self.takes_early_answers = takes_early_answers
        self._server = server
        limits = server.limits
        self._reader = FrameReader(limits.frame_bytes, limits.header_bytes, server.scratch, limits.json_header_bytes)
        self._transport: asyncio.Transport | None = None
        self._writer: FrameWriter | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        #: Those of them that end with the connection.
        self._parked: set[asyncio.Task[None]] = set()
        #: While what a broken connection had brought is carried out.
        self._unread: Unread | None = None
        self._own_requests = OwnRequests()
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
        """The requests under way whose handlers wait for something."""
        return frozenset(self._tasks)

    @property
    def is_gone(self) -> bool:
        """Whether nobody reads an answer any more; what it had brought may still be carried out."""
        return self._transport is None

    @property
    def writable(self) -> asyncio.Event:
        """Set while the peer reads its answers, and once it is gone."""
        return self._writable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        if self._server.has_stopped:
            transport.close()
            return
        if not self._server.has_place(transport.get_extra_info("socket")):
            self._server.refused_connections += 1
            if self._server.refused_connections % _REFUSALS_A_LINE == 1:
                _log.warning("closing connections: %d are open", len(self._server.connections))
            transport.close()
            return
        self._transport = transport
        self._writer = FrameWriter(transport, self._server.loop, self._server.limits.answer_bytes)
        end_pacing(transport.get_extra_info("socket"))
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]  # it may have gone again
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.last_read = self._server.loop.time()
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return  # it was one too many
        # Where it ended in order all that came was read; where the server closed it the rest is not wanted.
        self._unread = None if error is None else Unread(self._transport)
        self._transport = self._writer = None
        self.frame_begun = None
        self._writable.set()
        cancel_in_slices(self._server.loop, self._parked)
        self._own_requests.lost(self.peer)
        if self._unread is None:
            self._end()
        else:
            self.go_on()

    def pause_writing(self) -> None:
        if self._writer is not None:
            self._writer.pause()

    def resume_writing(self) -> None:
        self.last_read = self._server.loop.time()  # its peer lives: it reads
        if self._writer is None:
            return
        self._writer.resume()
        if not self._writable.is_set() and self._writer.unsent_bytes <= self._server.limits.write_low_bytes:
            self._writable.set()
            self._go_on()

    def get_buffer(self, _: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_read = monotonic()  # loops have the monotonic clock
        if not self._answer_promptly(nbytes):
            self._reader.received(nbytes)
            if not self._yielding:
                self._go_on()

    def send(self, command: Command) -> None:
        """Write a command; silently nothing once the peer is gone."""
        if self._writer is not None:
            self._writer.write(command)
            if self._writer.unsent_bytes > self._server.limits.write_high_bytes:
                self._writable.clear()

    @property
    def idle_writer(self) -> FrameWriter | None:
        """What takes a small frame, whole; None while something else is written, and once the peer is gone."""
        writer = self._writer
        return writer if writer is not None and writer.is_idle else None

    def push(self, command: Command) -> None:
        """Send the server's own request, one-way."""
        self._own_requests.number(command)
        command.flag |= FLAG_ONEWAY
        self.send(command)

    async def request(self, command: Command, timeout: float) -> Command:
        """Send the server's own request and return the client's answer, whatever its code.

        Raises:
            Timeout: no answer within `timeout` seconds.
            ConnectionLost: the client is gone, or went before it answered.
        """
        if self._transport is None:
            raise ConnectionLost(self.peer, "the client is gone")
        return await self._own_requests.ask(command, self.send, self.peer, timeout)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call it once when the connection is gone and all that it brought is begun; now, if that has been.

        The place to free what belongs to the connection.
        """
        if self._ended:
            callback()
        else:
            self._at_end.append(callback)

    def close(self) -> None:
        """Close at once, unsent answers included."""
        if self._transport is not None:
            self._transport.abort()
        elif self._unread is not None:
            self._end()

    def cancel(self) -> None:
        """`close`, and give up what is under way."""
        self.close()
        for task in self._tasks:
            task.cancel()

    def finish(self) -> None:
        """Close when what was written has been sent."""
        if self._transport is not None and self._writer is not None:
            self._writer.flush()
            self._transport.close()

    def go_on(self) -> None:
        """Look again whether there is room for what waits here."""
        if not self._yielding:
            self._go_on()

    # -- reading -------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Serve what has arrived, as far as the limits allow, and read on if they do."""
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
                if self._reader.inside_a_frame and self._yields(begun):
                    break
        except ProtocolError as error:
            _log.warning("closing the connection of %s: %s", self.peer, error)
            self.close()
        if self._transport is None or self._transport.is_closing():
            return
        admitted = self._may_arrive()
        if not self._yielding and admitted and self._may_serve():
            inside = self._reader.inside_a_frame
            self.frame_begun = (self.frame_begun or self.last_read) if inside else None
            self._server.waiting_for_room.pop(self, None)
            if not self._transport.is_reading():
                self.last_read = loop.time()  # its silence was ours
                self._transport.resume_reading()
            return
        self.frame_begun = None
        if not (admitted and self._is_room):
            self._server.waiting_for_room[self] = None
        if self._transport.is_reading():
            self._transport.pause_reading()

    def _yields(self, begun: float) -> bool:
        """Whether it has had its slice of the loop's time; it goes on behind the others then."""
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
        return self._server.room.is_there(for_more=bool(self._request_bytes))

    def _may_arrive(self) -> bool:
        """Count what has arrived of a large frame; whether there is room for more of it."""
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
        """No large frame of this connection is arriving any more."""
        self._is_arriving = False
        self._server.room.ended(self)
        self._server.wake_waiting()

    def _serve_unread(self, unread: Unread) -> None:
        """Carry out what a broken connection had brought, within the limits of all requests; then end it."""
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
            _log.warning("the rest of what %s sent is not carried out: %s", self.peer, error)
            self._end()
            return
        self._server.waiting_for_room[self] = None

    def _end(self) -> None:
        """Nothing comes any more: free what belongs to the connection."""
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
        """The server forgets a connection when the last of its requests is done."""
        if self._ended and not self._tasks:
            self._server.left(self)

    def _receive(self, command: Command) -> None:
        if command.is_response:
            self._own_requests.answered(command)
        else:
            self._serve(command)

    # -- serving -------------------------------------------------------------------------------------------------

    def _answer_promptly(self, count: int) -> bool:
        """Answer what has just been read, if it is one bare request and nothing else is under way here."""
        server, writer = self._server, self._writer
        asked = bare.read_request(server.scratch, count)
        if asked is None or writer is None or self._tasks or self._reader.inside_a_frame or not writer.is_idle:
            return False
        code, opaque = asked
        promptly = getattr(server.handlers.get(code), "promptly", None)
        if promptly is None or server.draining or server.authorize is not None or not server.room.is_there():
            return False
        answered = False

        def answer(body: bytes) -> None:
            nonlocal answered
            answered = True
            writer.write_alone(bare.answer(opaque, body))

        try:
            served = promptly(server.scratch[bare.HEAD_BYTES : count], answer)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is the answer
            if answered:
                _log.exception("request %d failed after it was answered", code)
            else:
                self._fail(Command(code, opaque=opaque, serialization=Serialization.MSGPACK), error)
            return True
        if isinstance(served, PromptFuture):
            self._answer_then(served, _REQUEST_BYTES + count, partial(self._answer_bare, code, opaque))
            return True
        return bool(served)

    def _answer_bare(self, code: int, opaque: int, body: PromptFuture[bytes]) -> None:
        writer, error = self._writer, body.exception()
        if error is None and writer is not None and writer.is_idle:
            writer.write_alone(bare.answer(opaque, body.result()))
            return
        request = Command(code, opaque=opaque, serialization=Serialization.MSGPACK)
        if error is None:
            self._answer(request, request.response(ResponseCode.SUCCESS, body=body.result()))
        else:
            self._fail(request, error)

    def _answer_then(self, made: PromptFuture[_T], held: int, answer: Callable[[PromptFuture[_T]], None]) -> None:
        """Have `answer` write what is `made`, in the turn in which it is, while the peer reads its answers."""

        def done(made: PromptFuture[_T]) -> None:
            if self._writable.is_set() or made.cancelled():
                self._finished(made, held)
                if not made.cancelled():
                    answer(made)
            else:  # many that wait for the same must not pile up answers
                self._tasks.discard(made)
                self._keep(self._server.loop.create_task(later(made)), held)

        async def later(made: PromptFuture[_T]) -> None:
            await self._writable.wait()
            answer(made)

        self._request_bytes += held
        self._server.room.hold(held)
        self._tasks.add(made)
        made.when_done(done)

    def _serve(self, request: Command) -> None:
        server = self._server
        handler = server.handlers.get(request.code)
        if server.draining:
            self._answer(request, faults.stopping(request))
            return
        if handler is None:
            self._answer(request, own_protocol.not_served(request))
            return
        waits = getattr(handler, "waits", False)
        if waits and self._transport is None:
            return  # nobody waits for it any more
        try:
            if request.half:
                raise InvalidInput("header", "whole characters, no half of a surrogate pair", request.half)
            if server.authorize is not None:
                server.authorize(self, request)
            result = handler(self, request)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is the answer
            self._fail(request, error)
            return
        if result is None or isinstance(result, Command):
            self._answer(request, result)
            return
        more = max(0, request.header_bytes - _REQUEST_BYTES)
        held = _REQUEST_BYTES + len(request.body) + _HEADER_GROWTH * more
        if isinstance(result, PromptFuture):
            self._answer_then(result, held, lambda made: self._answer_made(request, made))
            return
        task = server.loop.create_task(self._finish(request, result))
        if waits:
            self._parked.add(task)
        self._request_bytes += held
        server.room.hold(held)
        self._keep(task, held)

    def _answer_made(self, request: Command, made: PromptFuture[Answer]) -> None:
        if (error := made.exception()) is not None:
            self._fail(request, error)
        else:
            self._answer(request, made.result())

    def _keep(self, task: asyncio.Task[None], held: int) -> None:
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, held))

    async def _finish(self, request: Command, result: Awaitable[Answer]) -> None:
        try:
            answer = await result
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(request, error)
            return
        await self._writable.wait()  # many parked requests that are woken together must not pile up answers
        self._answer(request, answer)

    def _finished(self, task: asyncio.Future[Any], held: int) -> None:
        self._tasks.discard(task)
        self._parked.discard(task)
        self._request_bytes -= held
        self._server.give_back(held)
        if self._unread is not None or (self._transport is not None and not self._transport.is_reading()):
            self._server.loop.call_soon(self.go_on)  # who has answered may be in the middle of something
        self._leave()

    def _fail(self, request: Command, error: BaseException) -> None:
        if not isinstance(error, RayMQError):
            _log.exception("request %d failed", request.code, exc_info=error)
        self._answer(request, faults.to_response(request, error))

    def _answer(self, request: Command, answer: Answer) -> None:
        if answer is None or request.is_oneway:
            return
        try:
            self.send(answer)
        except Exception as error:  # noqa: BLE001 - nothing was written: the peer is told why
            if not isinstance(error, RayMQError):
                _log.exception("the answer to request %d cannot be written", request.code, exc_info=error)
            self.send(faults.to_response(request, error))
