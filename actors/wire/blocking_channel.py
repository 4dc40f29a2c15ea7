"""Blocking requests: the calling thread itself writes the frame and reads until the answer arrives.

Passing a request to an event loop and waiting for the outcome takes two thread switches, which cost more than all the
rest of a small request. `BlockingChannelPool` keeps a few blocking sockets per address beside the multiplexed
connection of the loop.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import Counter
from typing import Final
from weakref import WeakSet, finalize

from raymq.actors.errors import BrokerUnavailable, ConnectionLost, ProtocolError, Timeout
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire import error_codec, frame
from raymq.actors.wire.adaptive_spin import SPIN_SECONDS, AdaptiveSpin
from raymq.actors.wire.connection_pool import BrokerNameLookup
from raymq.actors.wire.frame import MESSAGE_FRAME_BYTES, Buffer, Command
from raymq.actors.wire.frame_reader import FrameReader
from raymq.actors.wire.tcp_pacing import disable_tcp_pacing
from raymq.actors.wire.tls import ReloadingContext
from raymq.storage.errors import no_answer_within

#: More threads than this that send to one address at the same time share the loop's connection, which batches frames.
CHANNELS_PER_ADDRESS: Final = 4
#: The most bytes of one read; answers are small.
_SCRATCH_BYTES: Final = 16 * 1024
#: The shortest timeout; `settimeout(0)` would make the socket non-blocking.
_SHORTEST_SECONDS: Final = 1e-3
#: A timeout that is too long by so much is accepted.
_UNNOTICED_SECONDS: Final = 5e-3
#: Above this a frame's body is written in a call of its own, since copying it would cost more than the call.
SMALL_BYTES: Final = 64 * 1024


class BlockingChannel:
    """One blocking connection, for one thread at a time.

    A request that gets no answer closes the connection.
    """

    def __init__(
        self,
        address: str,
        connected: socket.socket,
        asking: list[BlockingChannel],
        alertness: AdaptiveSpin,
        name: str | None = None,
    ) -> None:
        """Take over the connected socket `connected`.

        Args:
            name: the broker's name, for errors.
            asking: the channels, of all addresses, on which an `ask` is under way. A thread spins for the answer only
                if its channel is the only one, since several spinning threads would take processor time from each
                other.
        """
        self.address = address
        self._name = name
        self._asking = asking
        self._alertness = alertness
        self._socket = connected
        self._reader = FrameReader(MESSAGE_FRAME_BYTES, scratch=memoryview(bytearray(_SCRATCH_BYTES)))
        self._opaque = 0
        #: Requests whose answers will be read, and answers that arrived before the one that was read first.
        self._awaited: set[int] = set()
        self._arrived: dict[int, Command] = {}
        self._seconds = 0.0
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        #: Reentrant: a signal handler may run while the same thread holds the lock.
        self._closing = threading.RLock()
        finalize(self, connected.close).atexit = False  # without references no thread is in a call
        self.is_open = True

    @property
    def is_reusable(self) -> bool:
        """Return True if the next request can be written.

        That is the case if the server has neither closed the connection nor sent unexpected bytes.
        """
        return self.is_open and not self._poll.poll(0)

    @property
    def has_pending_answer(self) -> bool:
        """Return True if an answer is still to be read; then incoming bytes are expected."""
        return bool(self._awaited)

    def write(self, command: Command, timeout: float) -> int:
        """Write a request within `timeout` seconds and return its number.

        `read` or `forget` must follow. Several requests may be written first; the answers that are not read yet must
        fit into the socket's buffers meanwhile. Raises as `WireConnection.request` of the loop.
        """
        self._opaque = command.opaque = self._opaque % frame.MAX_OPAQUE + 1
        head = frame.encode(command, MESSAGE_FRAME_BYTES)
        try:
            self._wait_at_most(timeout)
            if command.body_bytes <= SMALL_BYTES:
                self._socket.sendall(b"".join((head, command.body, *command.pieces)))
            else:
                for piece in (head, command.body, *command.pieces):
                    self._socket.sendall(piece)
        except BaseException as error:
            self._fail(error, timeout)
            raise
        self._awaited.add(self._opaque)
        return self._opaque

    def read(self, timeout: float, number: int | None = None) -> Command:
        """Return the answer to request `number`, or to the last request if it is None.

        Blocks for up to `timeout` seconds. Raises as `WireConnection.request` of the loop.
        """
        try:
            answer = self._answer(timeout, self._opaque if number is None else number)
        except BaseException as error:
            self._fail(error, timeout)
            raise
        try:
            error_codec.raise_for_error(answer, self.address)
        except BrokerUnavailable as error:
            error.at_address(self.address, self._name)
            raise
        return answer

    def forget(self, number: int) -> None:
        """Discard the answer to request `number`, now or when it arrives."""
        self._awaited.discard(number)
        self._arrived.pop(number, None)

    def ask(self, code: int, body: Buffer, timeout: float) -> Buffer:
        """Send a small bare request and return the body of its answer.

        This is `write` and `read` in one call, with fewer steps.
        """
        opaque = self._opaque = self._opaque % frame.MAX_OPAQUE + 1
        deadline = time.monotonic() + timeout
        reader, connected, asking = self._reader, self._socket, self._asking
        asking.append(self)
        try:
            if self._seconds != timeout:
                self._wait_at_most(timeout)
            connected.sendall(bare.request(code, opaque, len(body)) + body)
            if not reader.is_mid_frame:
                if len(asking) == 1 and self._alertness.should_spin():
                    self._wait_awake()
                buffer = reader.buffer()
                count = connected.recv_into(buffer)
                if bare.is_answer(buffer, count, opaque):
                    return bytes(buffer[bare.HEAD_BYTES : count])
                if not count:
                    raise ConnectionError("closed by the peer")
                reader.received(count)
        except BaseException as error:
            self._fail(error, timeout)
            raise
        finally:
            asking.remove(self)
        return self.read(max(_SHORTEST_SECONDS, deadline - time.monotonic())).body

    def interrupt(self) -> None:
        """Shut down the connection from any thread; a request under way fails with ConnectionLost.

        The descriptor is closed by the thread that uses the channel, or with the last reference. If it were closed
        while another thread is about to wait for it, its number could meanwhile belong to another connection, and that
        thread would wait for, or read from, the wrong one.
        """
        self.is_open = False
        with self._closing, contextlib.suppress(OSError):  # the connection is already closed
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # SSLSocket's own would detach TLS under the reader

    def close(self) -> None:
        """Close at once; only for the thread that uses the channel."""
        self.interrupt()
        with self._closing:
            self._socket.close()

    def abandon(self) -> None:
        """In a child process, after a fork: close the descriptor; the connection is the parent's."""
        self.is_open = False
        self._socket.close()

    def _answer(self, timeout: float, number: int) -> Command:
        self._awaited.discard(number)
        arrived = self._arrived.pop(number, None)
        if arrived is not None:
            return arrived
        deadline = time.monotonic() + timeout
        timeout = max(timeout, _SHORTEST_SECONDS)
        while True:
            command = self._reader.next()
            if command is None:
                if timeout <= 0.0:  # bytes arrived each time, but never the answer
                    raise TimeoutError
                self._wait_at_most(timeout)
                count = self._socket.recv_into(self._reader.buffer())
                if not count:
                    raise ConnectionError("closed by the peer")
                self._reader.received(count)
                timeout = deadline - time.monotonic()
            elif command.is_response and command.opaque == number:
                return command
            elif command.is_response and command.opaque in self._awaited:
                self._arrived[command.opaque] = command

    def _wait_awake(self) -> None:
        """Poll for the answer without sleeping, for up to `SPIN_SECONDS`.

        Stop earlier if another thread begins a request.
        """
        poll, clock, asking = self._poll.poll, time.monotonic, self._asking
        until = clock() + SPIN_SECONDS
        while not poll(0):
            if clock() > until:
                self._alertness.record_wait(in_time=False)
                return
            if len(asking) > 1:
                return
        self._alertness.record_wait(in_time=True)

    def _wait_at_most(self, seconds: float) -> None:
        """Set the timeout of the next socket call.

        A difference of a few milliseconds is not worth the system call that sets the timeout.
        """
        if not -_SHORTEST_SECONDS <= self._seconds - seconds <= _UNNOTICED_SECONDS:
            self._seconds = max(seconds, _SHORTEST_SECONDS)
            self._socket.settimeout(self._seconds)

    def _fail(self, error: BaseException, timeout: float) -> None:
        """Close the channel, and raise the error that the caller gets for a socket failure.

        Return for any other exception, such as an interrupt, which the caller then re-raises.
        """
        self.close()
        if isinstance(error, TimeoutError):
            failure: BrokerUnavailable = Timeout(self.address, no_answer_within(timeout))
        elif isinstance(error, OSError | ProtocolError):
            failure = ConnectionLost(self.address, f"connection lost: {error}")
        else:
            return
        failure.at_address(self.address, self._name)
        raise failure from error


class BlockingChannelPool:
    """A pool of up to `CHANNELS_PER_ADDRESS` channels per address, opened on demand.

    It is thread-safe.
    """

    def __init__(self, tls: ReloadingContext | None = None, name_of: BrokerNameLookup = lambda _: None) -> None:
        self._tls = tls
        self._name_of = name_of
        self._closed = False
        self._processors = len(os.sched_getaffinity(0))
        self._begin()

    def request(self, address: str, command: Command, timeout: float) -> Command | None:
        """Return the SUCCESS answer of the server at "host:port".

        Return None if no channel is available; then nothing was sent.

        Raises:
            Timeout, ConnectionLost: the outcome is unknown.
            BrokerUnavailable: the server is stopping.
            RayMQError: the error that the answer carries.
        """
        deadline = time.monotonic() + timeout
        channel = self.begin(address, command, timeout)
        return None if channel is None else self.finish(channel, deadline - time.monotonic())

    def ask(self, address: str, code: int, body: Buffer, timeout: float) -> Buffer | None:
        """Send a bare request of at most `SMALL_BYTES` and return its answer's body.

        Returns None and raises as `request`.
        """
        channel = self._take(address, timeout)
        if channel is None:
            return None
        try:
            return channel.ask(code, body, timeout)
        finally:
            self._give_back(channel)

    def begin(self, address: str, command: Command, timeout: float) -> BlockingChannel | None:
        """Write a request and return the channel, from which `finish` reads the answer.

        Several requests may be written before the first `finish`. Returns None and raises as `request`.
        """
        channel = self._take(address, timeout)
        if channel is not None:
            try:
                channel.write(command, timeout)
            except BaseException:
                self._give_back(channel)
                raise
        return channel

    def finish(self, channel: BlockingChannel, timeout: float) -> Command:
        """Return the answer to the request that `begin` wrote on `channel`.

        Raises as `request`.
        """
        try:
            return channel.read(timeout)
        finally:
            self._give_back(channel)

    def open(self, address: str, timeout: float) -> BlockingChannel | None:
        """Open a channel for the caller's exclusive use until `end`.

        The channel is not counted among the shared ones. Return None if no connection can be made.
        """
        try:
            channel = self._connect(address, timeout)
        except (OSError, ValueError, OverflowError):
            return None
        return channel if self._keep(channel) else None

    def end(self, channel: BlockingChannel) -> None:
        """Shut down a channel that `open` returned.

        A thread that reads from it gets ConnectionLost.
        """
        channel.interrupt()
        with self._lock:
            self._open.discard(channel)

    def close(self) -> None:
        """Shut down all channels, also those in use; `request` returns None from now on."""
        with self._lock:
            self._closed = True
            channels = list(self._open)
        for channel in channels:
            channel.interrupt()
        for idle in list(self._idle.values()):
            idle.clear()

    def abandon(self) -> None:
        """In a child process, after a fork: drop the parent's channels and start empty."""
        for channel in self._open:
            channel.abandon()
        self._begin()

    def _begin(self) -> None:
        #: Reentrant: a signal handler may send, too, on a thread that holds the lock.
        self._lock = threading.RLock()
        self._asking: list[BlockingChannel] = []
        self._idle: dict[str, list[BlockingChannel]] = {}
        #: Weak references: a channel that is dropped without `end`, such as by a pull consumer that is not closed or by
        #: a send that is interrupted, frees its socket and its place.
        self._open: WeakSet[BlockingChannel] = WeakSet()
        self._shared: dict[str, WeakSet[BlockingChannel]] = {}
        #: How many channels to each address are being opened.
        self._coming: Counter[str] = Counter()

    def _take(self, address: str, timeout: float) -> BlockingChannel | None:
        # No lock: `list.pop` gives each entry to one thread only.
        idle = self._idle.get(address)
        while idle and not self._closed:
            try:
                channel = idle.pop()
            except IndexError:  # another thread took the last one
                break
            if channel.is_reusable:
                return channel
            channel.close()
            self._forget(channel)
        comes = False
        try:
            with self._lock:
                if self._closed or self._count(address) >= CHANNELS_PER_ADDRESS:
                    return None
                if address not in self._idle:
                    self._close_dead()
                    self._idle[address] = []
                    self._shared[address] = WeakSet()
                self._coming[address] += 1
                comes = True
            channel = self._connect(address, timeout / 2)
            if not self._keep(channel):
                return None
            self._shared[address].add(channel)
        except (OSError, ValueError, OverflowError):
            return None
        finally:
            if comes:
                with self._lock:
                    self._coming[address] -= 1
                    self._clean(address)
        return channel

    def _keep(self, channel: BlockingChannel) -> bool:
        """Register a new channel; if the pool was closed meanwhile, close it and return False."""
        with self._lock:
            if not self._closed:
                self._open.add(channel)
                return True
        channel.close()
        return False

    def _give_back(self, channel: BlockingChannel) -> None:
        if channel.is_open and not self._closed:
            self._idle[channel.address].append(channel)
        else:
            self._forget(channel)

    def _forget(self, channel: BlockingChannel) -> None:
        """Remove a closed channel, which frees its place."""
        with self._lock:
            self._open.discard(channel)
            if (shared := self._shared.get(channel.address)) is not None:
                shared.discard(channel)
            self._clean(channel.address)

    def _count(self, address: str) -> int:
        """Return how many channels an address has or is opening; the lock must be held."""
        return len(self._shared.get(address, ())) + self._coming[address]

    def _clean(self, address: str) -> None:
        """Drop the entries of an address without channels; the lock must be held."""
        if not self._count(address):
            self._idle.pop(address, None)
            self._shared.pop(address, None)
            del self._coming[address]

    def _close_dead(self) -> None:
        """Close idle channels that their server has closed; the lock must be held.

        It is called when the pool first connects to an address.
        """
        for idle in list(self._idle.values()):
            for _ in range(len(idle)):
                try:
                    channel = idle.pop()  # no other thread has it during the check
                except IndexError:  # other threads took the rest
                    break
                if channel.is_reusable:
                    idle.insert(0, channel)
                else:
                    channel.close()
                    self._forget(channel)

    def _connect(self, address: str, timeout: float) -> BlockingChannel:
        """Return a new channel to "host:port".

        Raises:
            OSError, ValueError: no connection can be made.
        """
        connected, alertness = self._connected(address, timeout), AdaptiveSpin(self._processors)
        return BlockingChannel(address, connected, self._asking, alertness, self._name_of(address))

    def _connected(self, address: str, timeout: float) -> socket.socket:
        """Return a socket connected to "host:port".

        Raises:
            OSError, ValueError: no connection can be made.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        connected = socket.create_connection((host, int(port)), timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            disable_tcp_pacing(connected)
            return connected if self._tls is None else self._tls.now().wrap_socket(connected, server_hostname=host)
        except BaseException:
            connected.close()
            raise
