"""The connecting side: one multiplexed connection per address, requests matched to answers by opaque.

Everything here runs on one event loop. `ConnectionPool` keeps a connection per address, connects once for many waiters,
and backs off from an address that refuses (each attempt may take `CONNECT_SECONDS`).

The pauses between attempts grow as long as an outage lasts. While nothing answers, the pool tries one of the addresses
in `probed` after the other, at most 5 s apart. At the first connection after that, and only then, the pauses of all
other addresses are cut to a random part of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, ClientClosed, ConnectionLost, ProtocolError, Timeout
from raymq.actors.wire import faults, frame, moved, own_protocol
from raymq.actors.wire import fixed_frame as bare
from raymq.actors.wire.codes import OWN_CODES_FROM, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.reader import FrameReader, make_scratch
from raymq.actors.wire.same_host import end_pacing
from raymq.actors.wire.silence import Silence
from raymq.actors.wire.tls import RenewedContext
from raymq.actors.wire.writing import FrameWriter
from raymq.storage.errors import no_answer_within

#: An attempt to connect is given this long before it is called failed, unless the caller's budget ends first.
CONNECT_SECONDS = 20.0
#: The longest pause before an attempt to connect is made again, once any other address answers after an outage of all.
AFTER_OUTAGE_SECONDS = 1.0
#: The longest pause between two such attempts while nothing answers, and the longest time that one of them may take.
PROBE_SECONDS = 5.0
#: Callers that are eager may attempt so often to connect to an address that refuses.
EAGER_SECONDS = 0.05
#: Above so many addresses a pool forgets those that it has no connection to and that are not being backed off from.
MOST_PEERS = 256

_log = logging.getLogger(__name__)

#: Gets a server's own request; returns the answer, or None where none is due. Runs on the loop and must not block.
PushHandler = Callable[["WireConnection", Command], Command | None]
#: The name of the broker at an address, for errors; None where nobody knows one there. Any thread.
NameOf = Callable[[str], str | None]
#: Another way to a server to whose socket no way leads: (address, command, seconds) -> answer; errors as a socket's.
SecondDoor = Callable[[str, Command, float], Awaitable[Command]]


class OnEarly(Protocol):
    """Gets the answers that come before the last one to a request. On the loop; what it raises ends the request."""

    def __call__(self, answer: Command) -> None:
        """One of them."""

    def bare(self, body: memoryview) -> None:
        """The body of one that came as a bare frame, alone; valid during the call."""


class WireConnection(asyncio.BufferedProtocol):
    """One open connection to a server."""

    def __init__(
        self,
        address: str,
        scratch: memoryview,
        on_push: PushHandler | None = None,
        max_frame_bytes: int = frame.MAX_FRAME_BYTES,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`max_frame_bytes` bounds the frames of both directions; `on_lost` is called with the address at the end."""
        self.address = address
        self._on_lost = on_lost
        self._on_push = on_push
        self._scratch = scratch
        self._max_frame_bytes = max_frame_bytes
        self._reader = FrameReader(max_frame_bytes, scratch=scratch)
        self._transport: asyncio.Transport | None = None
        self._writer: FrameWriter | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._on_early: dict[int, OnEarly] = {}
        self._opaque = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._silence = Silence()
        #: The server's answer to which versions of our own protocol are spoken here, and what that says.
        self._versions: asyncio.Future[Command] | None = None
        self._theirs: own_protocol.Spoken | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be written. Any thread may ask."""
        transport = self._transport
        return transport is not None and not transport.is_closing()

    @property
    def heard(self) -> int:
        """How many times something came."""
        return self._silence.heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        self._writer = FrameWriter(self._transport, asyncio.get_running_loop(), self._max_frame_bytes)
        end_pacing(transport.get_extra_info("socket"))

    def say_versions(self) -> None:
        """Tell the server which versions of our own protocol are spoken here; before any other request, and once."""
        self._versions = asyncio.get_running_loop().create_future()
        self._versions.add_done_callback(self._told_versions)
        command = own_protocol.agree_command()
        self._opaque = command.opaque = 1
        if self._writer is not None:
            self._waiting[command.opaque] = self._versions
            self._writer.write(command)

    def _told_versions(self, told: asyncio.Future[Command]) -> None:
        if not told.cancelled() and told.exception() is None:  # else the connection was lost
            with contextlib.suppress(ProtocolError):
                self._theirs = own_protocol.read_spoken(told.result())

    async def version(self, timeout: float) -> int:
        """The version of our own protocol that both sides speak, if the server tells its own within `timeout` seconds.

        Raises:
            VersionMismatch: there is none. Timeout, ConnectionLost, ProtocolError: it has told nothing.
        """
        if self._versions is None:
            return own_protocol.UNTOLD
        try:
            async with asyncio.timeout(timeout):
                answer = await asyncio.shield(self._versions)
        except TimeoutError as error:
            raise Timeout(self.address, no_answer_within(timeout)) from error
        return own_protocol.agreed(self.address, own_protocol.read_spoken(answer))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._writer = None
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(self.address, f"connection lost: {exc or 'closed by the peer'}"))
        self._on_lost(self.address)

    def pause_writing(self) -> None:
        self._writable.clear()
        if self._writer is not None:
            self._writer.pause()

    def resume_writing(self) -> None:
        if self._writer is not None:
            self._writer.resume()
            if not self._writer.unsent_bytes:
                self._writable.set()

    def get_buffer(self, _: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._silence.heard += 1
        if not self._reader.inside_a_frame:
            opaque = bare.read_early_answer(self._scratch, nbytes)
            if opaque is not None:
                on_early = self._on_early.get(opaque)
                if on_early is not None:
                    try:
                        on_early.bare(self._scratch[bare.HEAD_BYTES : nbytes])
                    except Exception as error:  # noqa: BLE001 - as below
                        self._end_with(opaque, error)
                return
        self._reader.received(nbytes)
        try:
            while (command := self._reader.next()) is not None:
                if command.is_early:
                    self._answered_early(command)
                elif command.is_response:
                    future = self._waiting.pop(command.opaque, None)
                    if future is not None and not future.done():
                        future.set_result(command)
                else:
                    self._asked(command)
        except ProtocolError:
            self.close()

    async def request(self, command: Command, timeout: float, on_early: OnEarly | None = None) -> Command:
        """Send `command` and return its answer, the last one if it has several, if that is SUCCESS.

        A connection on which requests go unanswered and nothing else comes is given up (`raymq.actors.wire.silence`).

        Raises:
            Timeout: no answer within `timeout` seconds; the outcome is unknown.
            ConnectionLost: the connection broke before the answer; the outcome is unknown.
            BrokerUnavailable: the connection was closed already, or the server is stopping; nothing was done.
            VersionMismatch: the server is so old, or so new, that it does not know the request; nothing was done.
            RayMQError: the error that the answer carries.
        """
        if self._theirs is not None and command.code >= OWN_CODES_FROM:
            own_protocol.agreed(self.address, self._theirs)
        self._opaque = self._opaque % frame.MAX_OPAQUE + 1
        opaque = command.opaque = self._opaque
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        asked_at, heard = time.monotonic(), self._silence.heard
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
                if self._writer is None or not self.is_open:
                    raise BrokerUnavailable(self.address, "connection is closed")
                self._waiting[opaque] = future
                if on_early is not None:
                    self._on_early[opaque] = on_early
                command.opaque = opaque  # it may be under way elsewhere, too
                self._writer.write(command)
                answer = await future
        except TimeoutError as error:
            if self._silence.unanswered(asked_at, heard):
                self.give_up()
            raise Timeout(self.address, no_answer_within(timeout)) from error
        finally:
            self._waiting.pop(opaque, None)
            self._on_early.pop(opaque, None)
        if answer.code == ResponseCode.GO_AWAY:
            self.close()
        own_protocol.check_served(self.address, command, answer)
        faults.check(answer, self.address)
        return answer

    def close(self) -> None:
        """Close; requests under way fail with ConnectionLost."""
        if self._transport is not None and self._writer is not None:
            self._writer.flush()
            self._transport.close()

    def give_up(self) -> None:
        """It is dead: nothing that is still to be written would arrive."""
        if self._transport is not None:
            _log.warning("%s: requests go unanswered, and nothing else comes: connecting anew", self.address)
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever is still to be written; requests under way fail with ConnectionLost."""
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """In a child process, after a fork: let go of the parent's connection without touching the parent's end.

        The descriptor is turned into one of nothing rather than closed: asyncio's objects still have its number.
        """
        if self._transport is not None:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, self._transport.get_extra_info("socket").fileno(), inheritable=False)
            os.close(nothing)
            self._transport = self._writer = None

    def _answered_early(self, answer: Command) -> None:
        on_early = self._on_early.get(answer.opaque)
        if on_early is None:  # who asked has given up
            return
        try:
            on_early(answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is who asked that has to know
            self._end_with(answer.opaque, error)

    def _end_with(self, opaque: int, error: Exception) -> None:
        del self._on_early[opaque]
        future = self._waiting.pop(opaque)
        if not future.done():
            future.set_exception(error)

    def _asked(self, request: Command) -> None:
        answer = None if self._on_push is None else self._on_push(self, request)
        if request.is_oneway or self._writer is None:
            return
        if answer is None:
            remark = f" request type {request.code} not supported"
            answer = request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        self._writer.write(answer)


@dataclass(slots=True)
class _Peer:
    """What a pool knows of one address."""

    connection: WireConnection | None = None
    opening: asyncio.Task[WireConnection] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    #: No attempt before this time of the loop's clock,
    not_before: float = 0.0
    #: and none before this one by callers that are eager.
    eager_not_before: float = 0.0
    #: The network did not lead there. (An address that refuses is there, and nobody listens.)
    no_way: bool = False
    #: Why the last attempt failed.
    reason: str = ""
    #: Set and replaced where there is news of the address.
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Let those who wait for an attempt to be due look again."""
        self.news.set()
        self.news = asyncio.Event()

    def is_in_use(self, now: float) -> bool:
        """Whether there is a connection, or one is being made, or none may be made yet."""
        is_open = self.connection is not None and self.connection.is_open
        return is_open or self.opening is not None or self.not_before > now


class ConnectionPool:
    """One connection per address. Used on one loop; `close()` ends it for good."""

    def __init__(
        self,
        on_push: PushHandler | None = None,
        *,
        tls: RenewedContext | None = None,
        second_door: SecondDoor | None = None,
        name_of: NameOf = lambda _: None,
        max_frame_bytes: int = frame.MAX_FRAME_BYTES,
    ) -> None:
        """`max_frame_bytes` of each connection; who sends or reads messages has to have `MOST_FRAME_BYTES`."""
        self._on_push = on_push
        self._max_frame_bytes = max_frame_bytes
        self._tls = tls
        self._name_of = name_of
        self._second_door = second_door
        self._scratch = make_scratch()
        self._peers: dict[str, _Peer] = {}
        self._closed = False
        #: Told the address of a server that did not answer, or said that it is not the one to ask.
        self.on_trouble: Callable[[str], None] = lambda _: None
        #: Called with the address of each open connection that ends.
        self.on_lost: set[Callable[[str], None]] = set()
        #: The addresses that are tried by turns while nothing answers: the name servers.
        self.probed: Sequence[str] = ()
        #: Whether nothing answers: an attempt to connect has failed, and no connection is open.
        self.is_silent = False
        self._probing: asyncio.Task[None] | None = None
        #: This machine's address as a server saw it last; what born hosts say.
        self.local_host = "127.0.0.1"

    async def get(
        self, address: str, timeout: float = CONNECT_SECONDS, *, patient: bool = False, eager: bool = False
    ) -> WireConnection:
        """The open connection to "host:port", made now if need be.

        Args:
            eager: attempt to connect also while the address is backed off from, at most every 50 ms: for callers that
                have pauses of their own.
            patient: an attempt that fails, or is not due yet, is waited for and repeated as long as the next one is due
                within `timeout` seconds: for callers that have no other address to go to.

        Raises:
            BrokerUnavailable: it refuses, or refused so short ago that no new attempt is due; nothing was sent.
            ClientClosed: the pool was closed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            if self._closed:
                raise ClientClosed("the client is closed")
            peer = self._peers.get(address) or self._meet(address)
            left = deadline - loop.time()
            try:
                # An attempt that hangs leaves half of the time to the second door.
                return await self._get(address, peer, left if self._second_door is None else left / 2, eager=eager)
            except BrokerUnavailable:
                hangs = peer.opening is not None
                if not patient or hangs or max(peer.not_before, loop.time()) >= deadline:
                    raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(peer.not_before):
                    await peer.news.wait()

    async def request(
        self,
        address: str,
        command: Command,
        timeout: float,
        *,
        patient: bool = False,
        eager: bool = False,
        reach_timeout: float | None = None,
        on_early: OnEarly | None = None,
    ) -> Command:
        """`get` and `WireConnection.request` within one budget of `timeout` seconds.

        `reach_timeout` is what `get` may take of it, None: all; `patient` and `eager` are as there.

        Where the network does not lead to the address the second door is taken, if there is one. An error that no
        answer brought names the broker as well as its address.
        """
        try:
            reach = timeout if reach_timeout is None else min(timeout, reach_timeout)
            return await self._request(
                address, command, timeout, reach, patient=patient, eager=eager, on_early=on_early
            )
        except BrokerUnavailable as error:
            error.at_address(address, self._name_of(address))
            self.on_trouble(address)
            raise

    async def _request(
        self,
        address: str,
        command: Command,
        timeout: float,
        reach: float,
        *,
        patient: bool,
        eager: bool,
        on_early: OnEarly | None,
    ) -> Command:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            connection = await self.get(address, reach, patient=patient, eager=eager)
        except BrokerUnavailable:
            if self._second_door is None or not self.is_barred(address):
                raise
            return await self._second_door(address, command, deadline - loop.time())
        return await connection.request(command, max(0.0, deadline - loop.time()), on_early)

    async def version(self, address: str, timeout: float) -> int:
        """The version of our own protocol that is spoken with a server; `timeout` to connect, and again to be told.

        Raises:
            VersionMismatch: there is none. BrokerUnavailable: it has not said which it speaks.
        """
        return await (await self.get(address, timeout)).version(timeout)

    def is_backing_off(self, address: str) -> bool:
        """Whether it refused so short ago that no new attempt is due. Any thread: loops have the monotonic clock."""
        peer = self._peers.get(address)
        return peer is not None and peer.not_before > time.monotonic()

    def is_connected(self, address: str) -> bool:
        """Whether the connection to it is open. Any thread."""
        peer = self._peers.get(address)
        connection = None if peer is None else peer.connection
        return connection is not None and connection.is_open

    def is_barred(self, address: str) -> bool:
        """Whether the second door is the only way there, as far as is known."""
        peer = self._peers.get(address)
        return self._second_door is not None and peer is not None and (peer.no_way or peer.opening is not None)

    async def wait_for_news(self, address: str, seconds: float) -> None:
        """Wait so long, or until the address is connected to or said to live again."""
        peer = self._peers.get(address)
        if peer is None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await peer.news.wait()

    def retry_now(self, address: str) -> None:
        """There is news that the address lives: the next attempt is due now."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.not_before = peer.eager_not_before = 0.0
            peer.backoff.reset()
            peer.wake()

    def drop(self, address: str) -> None:
        """Nobody is to be asked there any more: what is under way fails with ConnectionLost."""
        peer = self._peers.get(address)
        if peer is not None and peer.connection is not None:
            peer.connection.abort()

    async def close(self) -> None:
        """Close all connections; every later `get` raises ClientClosed."""
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
        for peer in self._peers.values():
            if peer.opening is not None:
                peer.opening.cancel()
            if peer.connection is not None:
                peer.connection.close()
        await asyncio.sleep(0)

    def abandon(self) -> None:
        """In a child process, after a fork: let go of what is the parent's, and begin anew on another loop.

        Only sockets lead on from there: the second door is a remote call, and Ray's connection does not survive a fork.
        """
        self._second_door = None
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.abandon()
        self._peers = {}
        self.is_silent, self._probing = False, None

    def _meet(self, address: str) -> _Peer:
        """A peer that is new; of old ones nothing is kept that a new attempt would not find out."""
        if len(self._peers) >= MOST_PEERS:
            now = asyncio.get_running_loop().time()
            self._peers = {known: peer for known, peer in self._peers.items() if peer.is_in_use(now)}
        peer = self._peers[address] = _Peer()
        return peer

    async def _get(self, address: str, peer: _Peer, timeout: float, *, eager: bool = False) -> WireConnection:
        if peer.connection is not None and peer.connection.is_open:
            return peer.connection
        if peer.opening is None:
            due = min(peer.not_before, peer.eager_not_before) if eager else peer.not_before
            wait = due - asyncio.get_running_loop().time()
            if wait > 0:
                raise BrokerUnavailable(address, f"{peer.reason}; next attempt in {wait:.1f} s")
            peer.opening = asyncio.get_running_loop().create_task(self._connect(address, peer))
            peer.opening.add_done_callback(lambda done: self._connected(peer, done))
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(peer.opening)
        except TimeoutError as error:
            raise BrokerUnavailable(address, no_answer_within(timeout, "connection")) from error

    def _connected(self, peer: _Peer, task: asyncio.Task[WireConnection]) -> None:
        peer.opening = None
        if not task.cancelled():
            task.exception()  # every waiter may have given up: somebody has to look, or asyncio complains

    async def _connect(self, address: str, peer: _Peer) -> WireConnection:
        loop = asyncio.get_running_loop()
        host, _, port = moved.now(address).rpartition(":")
        try:
            async with asyncio.timeout(PROBE_SECONDS if self.is_silent else CONNECT_SECONDS):
                transport, connection = await loop.create_connection(
                    lambda: WireConnection(address, self._scratch, self._on_push, self._max_frame_bytes, self._lost),
                    host.strip("[]"),
                    int(port),
                    ssl=None if self._tls is None else self._tls.now(),
                )
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the last of a port that none is
            now = loop.time()
            peer.eager_not_before = now + EAGER_SECONDS
            if now >= peer.not_before:  # an eager attempt before that makes nobody else wait longer
                peer.not_before = now + peer.backoff.next_delay()
            self._failed_to_connect()
            peer.no_way = not isinstance(error, ConnectionRefusedError | ssl.SSLError | ValueError | OverflowError)
            reason = _why(error)
            if self._tls is not None and peer.no_way and not isinstance(error, TimeoutError):
                reason += "; is it a TLS port? This client speaks TLS"
            peer.reason = f"cannot connect: {reason}"
            raise BrokerUnavailable(address, peer.reason) from error
        connection.say_versions()
        peer.backoff.reset()
        peer.no_way = False
        self.local_host = str(transport.get_extra_info("sockname")[0])
        peer.connection = connection
        peer.not_before = 0.0
        peer.wake()
        if self.is_silent:
            self._answered_again()
        return connection

    def _lost(self, address: str) -> None:
        for call in [] if self._closed else list(self.on_lost):
            call(address)

    def _failed_to_connect(self) -> None:
        if self.is_silent or self._closed:
            return
        if not any(peer.connection is not None and peer.connection.is_open for peer in self._peers.values()):
            self.is_silent = True
            if self._probing is None or self._probing.done():
                self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        """Try one of the probed addresses after the other, whether an attempt is due there or not."""
        backoff, turn = Backoff(cap=PROBE_SECONDS), 0
        while self.probed:
            await asyncio.sleep(backoff.next_delay())
            if not self.is_silent:
                return
            address = self.probed[turn % len(self.probed)]
            turn += 1
            peer = self._peers.get(address) or self._meet(address)
            peer.not_before = 0.0
            with contextlib.suppress(BrokerUnavailable):
                await self._get(address, peer, PROBE_SECONDS)

    def _answered_again(self) -> None:
        """End an outage of all addresses: let the others be tried again within a second, not all at the same time."""
        self.is_silent = False
        now = asyncio.get_running_loop().time()
        for peer in self._peers.values():
            peer.backoff.reset()
            soon = now + random.uniform(0.0, AFTER_OUTAGE_SECONDS)
            if peer.not_before > soon:
                peer.not_before = soon
                peer.wake()


def _why(error: Exception) -> str:
    """Say why there is no connection, in the system's words and without Python's."""
    text = str(error)
    is_refused = isinstance(error, ConnectionRefusedError)
    if is_refused or f"[Errno {errno.ECONNREFUSED}]" in text:  # the latter of a name with several addresses
        return "connection refused"
    if isinstance(error, OSError) and isinstance(error.errno, int) and error.errno > 0 and "Connect call" in text:
        return os.strerror(error.errno).lower()
    return text or type(error).__name__
