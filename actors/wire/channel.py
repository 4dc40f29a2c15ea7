"""Requests that the calling thread makes by itself: it writes the frame, and reads until the answer is there.

Handing a request to an event loop and waiting for the outcome takes two changes of thread, which cost more than all the
rest of a small request. `ChannelPool` keeps a few blocking sockets per address beside the loop's multiplexed one.
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
from raymq.actors.wire import faults, frame
from raymq.actors.wire import fixed_frame as bare
from raymq.actors.wire.busy_wait import AWAKE_SECONDS, Alertness
from raymq.actors.wire.connection import NameOf
from raymq.actors.wire.frame import MOST_FRAME_BYTES, Buffer, Command
from raymq.actors.wire.reader import FrameReader
from raymq.actors.wire.same_host import end_pacing
from raymq.actors.wire.tls import RenewedContext
from raymq.storage.errors import no_answer_within

#: Threads beyond this that send to one address at the same time share the loop's connection, where frames gather.
CHANNELS_PER_ADDRESS: Final = 4
#: What one read takes at most; answers are small.
_SCRATCH_BYTES: Final = 16 * 1024
#: `settimeout(0)` would mean not to wait at all.
_SHORTEST_SECONDS: Final = 1e-3
#: A call that ends so much later than it should is as good.
_UNNOTICED_SECONDS: Final = 5e-3
#: Above this a frame's body is written by itself, for copying it would cost more than a second call.
SMALL_BYTES: Final = 64 * 1024


class Channel:
    """One blocking connection; one thread at a time. A request that goes unanswered closes it."""

    def __init__(
        self,
        address: str,
        connected: socket.socket,
        asking: list[Channel],
        alertness: Alertness,
        name: str | None = None,
    ) -> None:
        """Takes over `connected`.

        Args:
            name: the broker's, for errors.
            asking: the channels that `ask` is under way on, of all addresses. Who is alone may stay awake for the
                answer; several threads would take each other's time.
        """
        self.address = address
        self._name = name
        self._asking = asking
        self._alertness = alertness
        self._socket = connected
        self._reader = FrameReader(MOST_FRAME_BYTES, scratch=memoryview(bytearray(_SCRATCH_BYTES)))
        self._opaque = 0
        #: Requests whose answers somebody will read, and those answers that came before one that was read first.
        self._awaited: set[int] = set()
        self._arrived: dict[int, Command] = {}
        self._seconds = 0.0
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        #: Reentrant: a signal handler may break off what it has interrupted.
        self._closing = threading.RLock()
        finalize(self, connected.close).atexit = False  # nobody has it any more: nobody is in a call
        self.is_open = True

    @property
    def is_quiet(self) -> bool:
        """Whether the next request can be written: the server has neither closed nor said anything unasked."""
        return self.is_open and not self._poll.poll(0)

    @property
    def is_awaited(self) -> bool:
        """Whether an answer is still to be read, so that it need not be quiet."""
        return bool(self._awaited)

    def write(self, command: Command, timeout: float) -> int:
        """Write a request, within `timeout` seconds; its number. Raises as the loop's `Connection.request`.

        `read` or `forget` must follow. Several may be written first: what is read last must have room meanwhile.
        """
        self._opaque = command.opaque = self._opaque % frame.MAX_OPAQUE + 1
        head = frame.encode(command, MOST_FRAME_BYTES)
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
        """The answer to a request, None: the last one; blocks and raises as the loop's `Connection.request`."""
        try:
            answer = self._answer(timeout, self._opaque if number is None else number)
        except BaseException as error:
            self._fail(error, timeout)
            raise
        try:
            faults.check(answer, self.address)
        except BrokerUnavailable as error:
            error.at_address(self.address, self._name)
            raise
        return answer

    def forget(self, number: int) -> None:
        """Nobody will read the answer to that request."""
        self._awaited.discard(number)
        self._arrived.pop(number, None)

    def ask(self, code: int, body: Buffer, timeout: float) -> Buffer:
        """The body of the answer to a small bare request; `write` and `read` in one, with fewer steps."""
        opaque = self._opaque = self._opaque % frame.MAX_OPAQUE + 1
        deadline = time.monotonic() + timeout
        reader, connected, asking = self._reader, self._socket, self._asking
        asking.append(self)
        try:
            if self._seconds != timeout:
                self._wait_at_most(timeout)
            connected.sendall(bare.request(code, opaque, len(body)) + body)
            if not reader.inside_a_frame:
                if len(asking) == 1 and self._alertness.is_worth_it():
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

    def break_off(self) -> None:
        """From any thread: it is of no use any more, and a request under way fails with ConnectionLost.

        Its descriptor is closed by who asks, or with the last reference: closed under a thread that is about to wait
        for it, its number may be another connection's by then, and what is waited for, or read, that one's.
        """
        self.is_open = False
        with self._closing, contextlib.suppress(OSError):  # it is gone already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS' own would take itself from under the reader

    def close(self) -> None:
        """Close at once; for who uses it alone."""
        self.break_off()
        with self._closing:
            self._socket.close()

    def abandon(self) -> None:
        """In a child process, after a fork: let go of the descriptor; the connection is the parent's."""
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
                if timeout <= 0.0:  # something came each time, and never the answer
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
        """Wait for the answer without going to sleep, for as long as that is worth it and nobody else asks."""
        poll, clock, asking = self._poll.poll, time.monotonic, self._asking
        until = clock() + AWAKE_SECONDS
        while not poll(0):
            if clock() > until:
                self._alertness.came(in_time=False)
                return
            if len(asking) > 1:
                return
        self._alertness.came(in_time=True)

    def _wait_at_most(self, seconds: float) -> None:
        """What the next call of the socket may take; a few milliseconds are not worth the system call that sets it."""
        if not -_SHORTEST_SECONDS <= self._seconds - seconds <= _UNNOTICED_SECONDS:
            self._seconds = max(seconds, _SHORTEST_SECONDS)
            self._socket.settimeout(self._seconds)

    def _fail(self, error: BaseException, timeout: float) -> None:
        """Close, and raise what a failure of the socket means to who asked. Otherwise it was an interrupt."""
        self.close()
        if isinstance(error, TimeoutError):
            told: BrokerUnavailable = Timeout(self.address, no_answer_within(timeout))
        elif isinstance(error, OSError | ProtocolError):
            told = ConnectionLost(self.address, f"connection lost: {error}")
        else:
            return
        told.at_address(self.address, self._name)
        raise told from error


class ChannelPool:
    """Up to `CHANNELS_PER_ADDRESS` channels per address, opened when they are needed. Thread-safe."""

    def __init__(self, tls: RenewedContext | None = None, name_of: NameOf = lambda _: None) -> None:
        self._tls = tls
        self._name_of = name_of
        self._closed = False
        self._processors = len(os.sched_getaffinity(0))
        self._begin()

    def request(self, address: str, command: Command, timeout: float) -> Command | None:
        """The answer of the server at "host:port", if that is SUCCESS; None: there is no channel, nothing was sent.

        Raises:
            Timeout, ConnectionLost: the outcome is unknown. BrokerUnavailable: the server is stopping.
            RayMQError: the error that the answer carries.
        """
        deadline = time.monotonic() + timeout
        channel = self.begin(address, command, timeout)
        return None if channel is None else self.finish(channel, deadline - time.monotonic())

    def ask(self, address: str, code: int, body: Buffer, timeout: float) -> Buffer | None:
        """As `request`, for a bare request of at most `SMALL_BYTES` and the body of its answer."""
        channel = self._take(address, timeout)
        if channel is None:
            return None
        try:
            return channel.ask(code, body, timeout)
        finally:
            self._give_back(channel)

    def begin(self, address: str, command: Command, timeout: float) -> Channel | None:
        """Write a request, whose answer `finish` has to fetch; several may be begun. None and raises as `request`."""
        channel = self._take(address, timeout)
        if channel is not None:
            try:
                channel.write(command, timeout)
            except BaseException:
                self._give_back(channel)
                raise
        return channel

    def finish(self, channel: Channel, timeout: float) -> Command:
        """The answer to the request that was begun on `channel`; raises as `request`."""
        try:
            return channel.read(timeout)
        finally:
            self._give_back(channel)

    def open(self, address: str, timeout: float) -> Channel | None:
        """A channel beside those that are shared, the caller's own until `end`; None if there is no way."""
        try:
            channel = self._connect(address, timeout)
        except (OSError, ValueError, OverflowError):
            return None
        return channel if self._keep(channel) else None

    def end(self, channel: Channel) -> None:
        """Let go of one that `open` gave: who reads from it, on another thread, gets ConnectionLost."""
        channel.break_off()
        with self._lock:
            self._open.discard(channel)

    def close(self) -> None:
        """End all channels, also those in use; `request` returns None from now on."""
        with self._lock:
            self._closed = True
            channels = list(self._open)
        for channel in channels:
            channel.break_off()
        for idle in list(self._idle.values()):
            idle.clear()

    def abandon(self) -> None:
        """In a child process, after a fork: let go of what is the parent's, and begin anew."""
        for channel in self._open:
            channel.abandon()
        self._begin()

    def _begin(self) -> None:
        #: A signal handler may send, too, on the thread that it has interrupted here.
        self._lock = threading.RLock()
        self._asking: list[Channel] = []
        self._idle: dict[str, list[Channel]] = {}
        #: Who drops a channel, as a pull consumer does that is not closed, or a send that is interrupted anywhere,
        #: drops its socket, and its place.
        self._open: WeakSet[Channel] = WeakSet()
        self._shared: dict[str, WeakSet[Channel]] = {}
        #: How many of each address are being opened.
        self._coming: Counter[str] = Counter()

    def _take(self, address: str, timeout: float) -> Channel | None:
        # Without the lock: a list gives each of its entries to one thread only.
        idle = self._idle.get(address)
        while idle and not self._closed:
            try:
                channel = idle.pop()
            except IndexError:  # another thread was quicker
                break
            if channel.is_quiet:
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

    def _keep(self, channel: Channel) -> bool:
        """Count a new channel; False, and it is closed, if the pool was closed meanwhile."""
        with self._lock:
            if not self._closed:
                self._open.add(channel)
                return True
        channel.close()
        return False

    def _give_back(self, channel: Channel) -> None:
        if channel.is_open and not self._closed:
            self._idle[channel.address].append(channel)
        else:
            self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        """A closed channel's place is free again."""
        with self._lock:
            self._open.discard(channel)
            if (shared := self._shared.get(channel.address)) is not None:
                shared.discard(channel)
            self._clean(channel.address)

    def _count(self, address: str) -> int:
        """With the lock held: how many channels an address has, those included that are being opened."""
        return len(self._shared.get(address, ())) + self._coming[address]

    def _clean(self, address: str) -> None:
        """With the lock held: of an address without channels nothing is kept."""
        if not self._count(address):
            self._idle.pop(address, None)
            self._shared.pop(address, None)
            del self._coming[address]

    def _close_dead(self) -> None:
        """With the lock held, where an address is new: let go of idle channels whose server has closed them."""
        for idle in list(self._idle.values()):
            for _ in range(len(idle)):
                try:
                    channel = idle.pop()  # ours alone while we look
                except IndexError:  # other threads took them
                    break
                if channel.is_quiet:
                    idle.insert(0, channel)
                else:
                    channel.close()
                    self._forget(channel)

    def _connect(self, address: str, timeout: float) -> Channel:
        """A new channel to "host:port"; OSError, ValueError."""
        connected, alertness = self._connected(address, timeout), Alertness(self._processors)
        return Channel(address, connected, self._asking, alertness, self._name_of(address))

    def _connected(self, address: str, timeout: float) -> socket.socket:
        """A socket to "host:port"; OSError, ValueError."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        connected = socket.create_connection((host, int(port)), timeout)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_pacing(connected)
            return connected if self._tls is None else self._tls.now().wrap_socket(connected, server_hostname=host)
        except BaseException:
            connected.close()
            raise
