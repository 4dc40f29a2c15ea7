"""The client's connections: one multiplexed connection per address, answers matched by opaque.

Everything here runs on one event loop. `ConnectionPool` keeps a connection per address, shares one attempt to connect
among all waiting callers, and backs off from an address that refuses connections (each attempt may take
`CONNECT_SECONDS`).

The pauses between attempts grow during an outage. While no server answers, the pool tries the addresses in
`probe_addresses` one after the other, at most 5 s apart. When the first connection after such an outage is open, and
only then, the pauses of all other addresses are shortened to a random part of a second.
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
from raymq.actors.wire import address_resolution, error_codec, frame, protocol_version
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire.codes import OWN_CODES_FROM, ResponseCode
from raymq.actors.wire.dead_peer_detector import DeadPeerDetector
from raymq.actors.wire.frame import Command
from raymq.actors.wire.frame_reader import FrameReader, make_scratch
from raymq.actors.wire.frame_writer import FrameWriter
from raymq.actors.wire.tcp_pacing import disable_tcp_pacing
from raymq.actors.wire.tls import ReloadingContext
from raymq.storage.errors import no_answer_within

#: An attempt to connect fails after this time, or earlier if the caller's timeout ends.
CONNECT_SECONDS = 20.0
#: The longest pause before the next attempt to connect, after an outage of all addresses has ended.
RECONNECT_JITTER_SECONDS = 1.0
#: While no server answers: the longest pause between two attempts, and the longest time of one attempt.
PROBE_SECONDS = 5.0
#: Eager callers may try to connect to a refusing address once in this time.
EAGER_RETRY_SECONDS = 0.05
#: With more addresses than this a pool drops the entries of those without a connection or a pending back-off.
MAX_PEERS = 256

_log = logging.getLogger(__name__)

#: Receives a server's own request and returns the answer, or None if none is due. Runs on the loop and must not block.
PushHandler = Callable[["WireConnection", Command], Command | None]
#: Returns the name of the broker at an address, for errors; None if it is unknown. Called on any thread.
BrokerNameLookup = Callable[[str], str | None]
#: Another transport to a server whose socket cannot be reached: (address, command, seconds) -> answer; raises as a
#: socket.
FallbackTransport = Callable[[str, Command, float], Awaitable[Command]]


class EarlyAnswerHandler(Protocol):
    """A handler of the answers that arrive before the last one to a request.

    It is called on the loop; an exception that it raises ends the request.
    """

    def __call__(self, answer: Command) -> None:
        """Handle one early answer."""

    def bare(self, body: memoryview) -> None:
        """Handle the body of an early answer that arrived alone as a bare frame.

        `body` is valid during the call only.
        """


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
        """Create a connection whose frames have at most `max_frame_bytes` in both directions.

        `on_lost` is called with the address when the connection ends.
        """
        self.address = address
        self._on_lost = on_lost
        self._on_push = on_push
        self._scratch = scratch
        self._max_frame_bytes = max_frame_bytes
        self._reader = FrameReader(max_frame_bytes, scratch=scratch)
        self._transport: asyncio.Transport | None = None
        self._writer: FrameWriter | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._on_early: dict[int, EarlyAnswerHandler] = {}
        self._opaque = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._silence = DeadPeerDetector()
        #: The server's answer to AGREE_VERSIONS, and the version range in it.
        self._versions: asyncio.Future[Command] | None = None
        self._theirs: protocol_version.VersionRange | None = None

    @property
    def is_open(self) -> bool:
        """Return True if requests can be written. May be called on any thread."""
        transport = self._transport
        return transport is not None and not transport.is_closing()

    @property
    def receive_count(self) -> int:
        """Return how often bytes have arrived."""
        return self._silence.receive_count

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class does not derive from asyncio.Transport
        self._writer = FrameWriter(self._transport, asyncio.get_running_loop(), self._max_frame_bytes)
        disable_tcp_pacing(transport.get_extra_info("socket"))

    def send_versions(self) -> None:
        """Send the server the range of versions of RayMQ's own protocol that this side speaks.

        Call it once, before any other request.
        """
        self._versions = asyncio.get_running_loop().create_future()
        self._versions.add_done_callback(self._peer_versions)
        command = protocol_version.agree_versions_command()
        self._opaque = command.opaque = 1
        if self._writer is not None:
            self._waiting[command.opaque] = self._versions
            self._writer.write(command)

    def _peer_versions(self, answer: asyncio.Future[Command]) -> None:
        if not answer.cancelled() and answer.exception() is None:  # otherwise the connection was lost
            with contextlib.suppress(ProtocolError):
                self._theirs = protocol_version.read_version_range(answer.result())

    async def version(self, timeout: float) -> int:
        """Return the version of RayMQ's own protocol that both sides speak.

        Waits up to `timeout` seconds for the server's answer to AGREE_VERSIONS.

        Raises:
            VersionMismatch: the two sides have no version in common.
            Timeout, ConnectionLost, ProtocolError: the server sent no valid version range.
        """
        if self._versions is None:
            return protocol_version.DEFAULT_VERSION
        try:
            async with asyncio.timeout(timeout):
                answer = await asyncio.shield(self._versions)
        except TimeoutError as error:
            raise Timeout(self.address, no_answer_within(timeout)) from error
        return protocol_version.negotiate(self.address, protocol_version.read_version_range(answer))

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
        self._silence.receive_count += 1
        if not self._reader.is_mid_frame:
            opaque = bare.read_early_answer(self._scratch, nbytes)
            if opaque is not None:
                on_early_answer = self._on_early.get(opaque)
                if on_early_answer is not None:
                    try:
                        on_early_answer.bare(self._scratch[bare.HEAD_BYTES : nbytes])
                    except Exception as error:  # noqa: BLE001 - the caller of the request gets the error
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
                    self._requested(command)
        except ProtocolError:
            self.close()

    async def request(
        self, command: Command, timeout: float, on_early_answer: EarlyAnswerHandler | None = None
    ) -> Command:
        """Send `command` and return its answer, the last one if it has several.

        The answer is returned if its code is SUCCESS. The connection is closed if requests on it time out and no other
        bytes arrive either (`raymq.actors.wire.dead_peer_detector`).

        Raises:
            Timeout: no answer within `timeout` seconds; the outcome is unknown.
            ConnectionLost: the connection broke before the answer; the outcome is unknown.
            BrokerUnavailable: the connection was closed already, or the server is stopping; nothing was done.
            VersionMismatch: the server is so old, or so new, that it does not know the request; nothing was done.
            RayMQError: the error that the answer carries.
        """
        if self._theirs is not None and command.code >= OWN_CODES_FROM:
            protocol_version.negotiate(self.address, self._theirs)
        self._opaque = self._opaque % frame.MAX_OPAQUE + 1
        opaque = command.opaque = self._opaque
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        asked_at, receive_count = time.monotonic(), self._silence.receive_count
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
                if self._writer is None or not self.is_open:
                    raise BrokerUnavailable(self.address, "connection is closed")
                self._waiting[opaque] = future
                if on_early_answer is not None:
                    self._on_early[opaque] = on_early_answer
                command.opaque = opaque  # set again: another connection may send the same command
                self._writer.write(command)
                answer = await future
        except TimeoutError as error:
            if self._silence.unanswered(asked_at, receive_count):
                self.give_up()
            raise Timeout(self.address, no_answer_within(timeout)) from error
        finally:
            self._waiting.pop(opaque, None)
            self._on_early.pop(opaque, None)
        if answer.code == ResponseCode.GO_AWAY:
            self.close()
        protocol_version.check_supported(self.address, command, answer)
        error_codec.raise_for_error(answer, self.address)
        return answer

    def close(self) -> None:
        """Close the connection; requests under way fail with ConnectionLost."""
        if self._transport is not None and self._writer is not None:
            self._writer.flush()
            self._transport.close()

    def give_up(self) -> None:
        """Close a connection whose peer is dead, without sending the bytes still unsent."""
        if self._transport is not None:
            _log.warning("%s: requests are not answered, and no other data arrive: reconnecting", self.address)
            self.abort()

    def abort(self) -> None:
        """Close at once without sending unsent bytes; requests under way fail with ConnectionLost."""
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """In a child process, after a fork: detach from the parent's connection without affecting it.

        The descriptor is redirected to /dev/null rather than closed, because asyncio's objects still use its number.
        """
        if self._transport is not None:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(nothing, self._transport.get_extra_info("socket").fileno(), inheritable=False)
            os.close(nothing)
            self._transport = self._writer = None

    def _answered_early(self, answer: Command) -> None:
        on_early_answer = self._on_early.get(answer.opaque)
        if on_early_answer is None:  # the caller's request has ended
            return
        try:
            on_early_answer(answer)
        except Exception as error:  # noqa: BLE001 - the caller of the request gets the error
            self._end_with(answer.opaque, error)

    def _end_with(self, opaque: int, error: Exception) -> None:
        del self._on_early[opaque]
        future = self._waiting.pop(opaque)
        if not future.done():
            future.set_exception(error)

    def _requested(self, request: Command) -> None:
        answer = None if self._on_push is None else self._on_push(self, request)
        if request.is_oneway or self._writer is None:
            return
        if answer is None:
            remark = f" request type {request.code} not supported"
            answer = request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        self._writer.write(answer)


@dataclass(slots=True)
class _Peer:
    """The state of one address in a pool."""

    connection: WireConnection | None = None
    opening: asyncio.Task[WireConnection] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    #: No attempt to connect before this time of the loop's clock.
    not_before: float = 0.0
    #: No attempt by eager callers before this time of the loop's clock.
    eager_not_before: float = 0.0
    #: The last attempt did not reach the host. (A host that refuses the connection was reached, but nothing listens
    #: there.)
    is_unreachable: bool = False
    #: Why the last attempt failed.
    reason: str = ""
    #: Set, and replaced by a new event, when the state of the address changes.
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Wake the callers that wait for the next attempt, so that they check again."""
        self.news.set()
        self.news = asyncio.Event()

    def is_in_use(self, now: float) -> bool:
        """Return True if the entry has a connection, an attempt, or a pending back-off."""
        is_open = self.connection is not None and self.connection.is_open
        return is_open or self.opening is not None or self.not_before > now


class ConnectionPool:
    """A pool with one connection per address.

    It is used on one loop; after `close()` it cannot be used again.
    """

    def __init__(
        self,
        on_push: PushHandler | None = None,
        *,
        tls: ReloadingContext | None = None,
        second_door: FallbackTransport | None = None,
        name_of: BrokerNameLookup = lambda _: None,
        max_frame_bytes: int = frame.MAX_FRAME_BYTES,
    ) -> None:
        """Create a pool whose connections allow frames of `max_frame_bytes`.

        A client that sends or reads messages has to pass `MESSAGE_FRAME_BYTES`.
        """
        self._on_push = on_push
        self._max_frame_bytes = max_frame_bytes
        self._tls = tls
        self._name_of = name_of
        self._fallback_transport = second_door
        self._scratch = make_scratch()
        self._peers: dict[str, _Peer] = {}
        self._closed = False
        #: Called with the address of a server that did not answer or reported that it is not the right one.
        self.on_unavailable: Callable[[str], None] = lambda _: None
        #: Called with the address of each open connection that ends.
        self.on_lost: set[Callable[[str], None]] = set()
        #: The addresses that are tried in turn while no server answers: the name servers.
        self.probe_addresses: Sequence[str] = ()
        #: True while no server answers: an attempt to connect has failed, and no connection is open.
        self.is_offline = False
        self._probing: asyncio.Task[None] | None = None
        #: The local address of the last connection; it is used as the born host of messages.
        self.local_host = "127.0.0.1"

    async def get(
        self, address: str, timeout: float = CONNECT_SECONDS, *, patient: bool = False, eager: bool = False
    ) -> WireConnection:
        """Return the open connection to "host:port"; connect first if there is none.

        Args:
            eager: attempt to connect also while the pool backs off from the address, at most every 50 ms: for callers
                with pauses of their own.
            patient: if an attempt fails or is not due yet, wait and repeat it, as long as the next one is due within
                `timeout` seconds: for callers that have no other address.

        Raises:
            BrokerUnavailable: the address refuses connections, or refused one so recently that no new attempt is due;
                nothing was sent.
            ClientClosed: the pool was closed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            if self._closed:
                raise ClientClosed("the client is closed")
            peer = self._peers.get(address) or self._meet(address)
            remaining = deadline - loop.time()
            try:
                # A hanging attempt leaves half of the time to the fallback transport.
                return await self._get(
                    address, peer, remaining if self._fallback_transport is None else remaining / 2, eager=eager
                )
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
        on_early_answer: EarlyAnswerHandler | None = None,
    ) -> Command:
        """Call `get` and `WireConnection.request` within one timeout of `timeout` seconds.

        `reach_timeout` is the part of it that `get` may use, None for all; `patient` and `eager` are as in `get`.

        If the network does not reach the address, the fallback transport is used, if there is one. An error that was
        not sent by a server names the broker as well as its address.
        """
        try:
            reach = timeout if reach_timeout is None else min(timeout, reach_timeout)
            return await self._request(
                address, command, timeout, reach, patient=patient, eager=eager, on_early_answer=on_early_answer
            )
        except BrokerUnavailable as error:
            error.at_address(address, self._name_of(address))
            self.on_unavailable(address)
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
        on_early_answer: EarlyAnswerHandler | None,
    ) -> Command:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            connection = await self.get(address, reach, patient=patient, eager=eager)
        except BrokerUnavailable:
            if self._fallback_transport is None or not self.needs_fallback(address):
                raise
            return await self._fallback_transport(address, command, deadline - loop.time())
        return await connection.request(command, max(0.0, deadline - loop.time()), on_early_answer)

    async def version(self, address: str, timeout: float) -> int:
        """Return the version of RayMQ's own protocol that is used with a server.

        `timeout` applies once to connecting, and again to the server's answer.

        Raises:
            VersionMismatch: the two sides have no version in common.
            BrokerUnavailable: the server did not report its versions.
        """
        return await (await self.get(address, timeout)).version(timeout)

    def is_backing_off(self, address: str) -> bool:
        """Return True if no new attempt to connect to the address is due yet.

        May be called on any thread, since event loops use the monotonic clock.
        """
        peer = self._peers.get(address)
        return peer is not None and peer.not_before > time.monotonic()

    def is_connected(self, address: str) -> bool:
        """Return True if the connection to the address is open.

        May be called on any thread.
        """
        peer = self._peers.get(address)
        connection = None if peer is None else peer.connection
        return connection is not None and connection.is_open

    def needs_fallback(self, address: str) -> bool:
        """Return True if the address seems to be reachable only by the fallback transport."""
        peer = self._peers.get(address)
        return (
            self._fallback_transport is not None
            and peer is not None
            and (peer.is_unreachable or peer.opening is not None)
        )

    async def wait_for_connection(self, address: str, seconds: float) -> None:
        """Wait `seconds`, or until the address is connected or reported as available."""
        peer = self._peers.get(address)
        if peer is None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await peer.news.wait()

    def retry_now(self, address: str) -> None:
        """Make the next attempt due now, because the address was reported as available."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.not_before = peer.eager_not_before = 0.0
            peer.backoff.reset()
            peer.wake()

    def drop(self, address: str) -> None:
        """Abort the connection to an address; requests under way fail with ConnectionLost."""
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
        """In a child process, after a fork: drop the parent's connections and start empty.

        The pool may then be used on another loop. Only sockets can be used from then on: the fallback transport is a
        remote call, and Ray's connection does not survive a fork.
        """
        self._fallback_transport = None
        for peer in self._peers.values():
            if peer.connection is not None:
                peer.connection.abandon()
        self._peers = {}
        self.is_offline, self._probing = False, None

    def _meet(self, address: str) -> _Peer:
        """Return a new entry for an address.

        If there are too many entries, drop those that are not in use; a new attempt would restore their state.
        """
        if len(self._peers) >= MAX_PEERS:
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
            task.exception()  # retrieved, or asyncio would log it if all callers timed out

    async def _connect(self, address: str, peer: _Peer) -> WireConnection:
        loop = asyncio.get_running_loop()
        host, _, port = address_resolution.now(address).rpartition(":")
        try:
            async with asyncio.timeout(PROBE_SECONDS if self.is_offline else CONNECT_SECONDS):
                transport, connection = await loop.create_connection(
                    lambda: WireConnection(address, self._scratch, self._on_push, self._max_frame_bytes, self._lost),
                    host.strip("[]"),
                    int(port),
                    ssl=None if self._tls is None else self._tls.now(),
                )
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # OverflowError: an invalid port
            now = loop.time()
            peer.eager_not_before = now + EAGER_RETRY_SECONDS
            if now >= peer.not_before:  # an early, eager attempt must not prolong the pause of others
                peer.not_before = now + peer.backoff.next_delay()
            self._failed_to_connect()
            peer.is_unreachable = not isinstance(
                error, ConnectionRefusedError | ssl.SSLError | ValueError | OverflowError
            )
            reason = _why(error)
            if self._tls is not None and peer.is_unreachable and not isinstance(error, TimeoutError):
                reason += "; is it a TLS port? This client uses TLS"
            peer.reason = f"cannot connect: {reason}"
            raise BrokerUnavailable(address, peer.reason) from error
        connection.send_versions()
        peer.backoff.reset()
        peer.is_unreachable = False
        self.local_host = str(transport.get_extra_info("sockname")[0])
        peer.connection = connection
        peer.not_before = 0.0
        peer.wake()
        if self.is_offline:
            self._answered_again()
        return connection

    def _lost(self, address: str) -> None:
        for call in [] if self._closed else list(self.on_lost):
            call(address)

    def _failed_to_connect(self) -> None:
        if self.is_offline or self._closed:
            return
        if not any(peer.connection is not None and peer.connection.is_open for peer in self._peers.values()):
            self.is_offline = True
            if self._probing is None or self._probing.done():
                self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        """Try the addresses of `probe_addresses` in turn, whether or not an attempt is due there."""
        backoff, turn = Backoff(cap=PROBE_SECONDS), 0
        while self.probe_addresses:
            await asyncio.sleep(backoff.next_delay())
            if not self.is_offline:
                return
            address = self.probe_addresses[turn % len(self.probe_addresses)]
            turn += 1
            peer = self._peers.get(address) or self._meet(address)
            peer.not_before = 0.0
            with contextlib.suppress(BrokerUnavailable):
                await self._get(address, peer, PROBE_SECONDS)

    def _answered_again(self) -> None:
        """End an outage: make attempts at all addresses due at random times within a second."""
        self.is_offline = False
        now = asyncio.get_running_loop().time()
        for peer in self._peers.values():
            peer.backoff.reset()
            soon = now + random.uniform(0.0, RECONNECT_JITTER_SECONDS)
            if peer.not_before > soon:
                peer.not_before = soon
                peer.wake()


def _why(error: Exception) -> str:
    """Return why a connection failed, in the operating system's words."""
    text = str(error)
    is_refused = isinstance(error, ConnectionRefusedError)
    if is_refused or f"[Errno {errno.ECONNREFUSED}]" in text:  # the second case: a name with several addresses
        return "connection refused"
    if isinstance(error, OSError) and isinstance(error.errno, int) and error.errno > 0 and "Connect call" in text:
        return os.strerror(error.errno).lower()
    return text or type(error).__name__
