"""What a send costs that does nothing but cross sockets: the floor under one copy, and under a copy on another machine.

A process answers each request of a message's size; another one hands it on first, and waits for the next one's answer,
as a master waits for its replica. Nothing is looked at, nothing is kept. One pair uses blocking sockets, and another
one asyncio's event loop and protocols, as RayMQ's broker does: its loop wakes up once for a request, or twice.

    python tests/bench/bare_relays.py sockets|asyncio ADDRESS [NEXT_ADDRESS PORT]      # prints its port, and serves
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from tests.bench.sides import Place, Places, Side

#: What is on the wire beside the body of a message, and the answer to it.
_AROUND_BYTES: Final = 152
_ANSWER: Final = bytes(39)


class BareSide:
    """As `tests.bench.sides.Side`; it has no batches."""

    ways: Sequence[str] = ()

    def __init__(self, name: str, copies: int, processes: Mapping[str, int], connected: socket.socket) -> None:
        self.name, self.copies, self.processes = name, copies, processes
        self._connected = connected

    def singles(self, count: int, size: int) -> list[float]:
        """Each request goes when the one before it was answered; the microseconds of each."""
        request, times = (size + _AROUND_BYTES).to_bytes(4, "big") + bytes(size + _AROUND_BYTES), []
        for _ in range(count):
            began = time.perf_counter()
            self._connected.sendall(request)
            _take(self._connected, len(_ANSWER))
            times.append((time.perf_counter() - began) * 1e6)
        return times

    def many(self, way: str, count: int, size: int) -> float:
        """There is no such way."""
        raise ValueError(way)


@contextmanager
def bare_sides(places: Places, folder: Path, own_pid: int) -> Iterator[list[Side]]:
    """One that answers, and one that hands on to another one first."""
    from tests.bench.command_program import CommandProgram

    with ExitStack() as stack:

        def started(kind: str, place: Place, *arguments: str) -> CommandProgram:
            program = [sys.executable, str(Path(__file__).resolve()), kind, place.address, *arguments]
            return stack.enter_context(CommandProgram([*place.inside, *program], folder, folder / "relay.log"))

        def connected(place: Place, program: CommandProgram) -> socket.socket:
            return stack.enter_context(_connection(place.address, int(program.ready)))

        first, second = places.brokers[:2]
        sides: list[Side] = []
        for kind, name in (("sockets", "bare sockets"), ("asyncio", "bare asyncio")):
            alone, last = started(kind, first), started(kind, second)
            relay = started(kind, first, second.address, last.ready)
            one = {"client": own_pid, "master": alone.pid}
            two = {"client": own_pid, "master": relay.pid, "replica": last.pid}
            sides += [
                BareSide(f"{name}, one hop", 1, one, connected(first, alone)),
                BareSide(f"{name}, two hops", 2, two, connected(first, relay)),
            ]
        yield sides


def serve(address: str, following: Sequence[str]) -> None:
    """Serve one connection, until it ends."""
    with ExitStack() as stack:
        onward = None
        if following:
            onward = stack.enter_context(_connection(following[0], int(following[1])))
        listening = stack.enter_context(socket.create_server((address, 0)))
        print(listening.getsockname()[1], flush=True)
        connected = stack.enter_context(listening.accept()[0])
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        while head := connected.recv(4, socket.MSG_WAITALL):
            request = _take(connected, int.from_bytes(head, "big"))
            if onward is not None:
                onward.sendall(head + request)
                _take(onward, len(_ANSWER))
            connected.sendall(_ANSWER)


class _Relay(asyncio.BufferedProtocol):
    """Answers what arrives, or hands it on to `onward`, whose answers are answers, too."""

    def __init__(self, onward: _Relay | None = None) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._buffer = memoryview(bytearray(1 << 16))
        self._onward = onward
        self._back: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._onward is not None:
            self._onward._back = self._transport

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.cancel()

    def get_buffer(self, _: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._onward is not None and self._onward._transport is not None:
            self._onward._transport.write(bytes(self._buffer[:nbytes]))
        elif (asker := self._back or self._transport) is not None:
            asker.write(_ANSWER)


async def serve_by_loop(address: str, following: Sequence[str]) -> None:
    """Serve one connection as `serve` does, with asyncio; each request has to arrive at once."""
    loop, onward = asyncio.get_running_loop(), None
    if following:
        _, onward = await loop.create_connection(_Relay, following[0], int(following[1]))
    relay = _Relay(onward)
    server = await loop.create_server(lambda: relay, address, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.wait([relay.ended])


def _connection(address: str, port: int) -> socket.socket:
    made = socket.create_connection((address, port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return made


def _take(connected: socket.socket, count: int) -> bytes:
    taken = connected.recv(count, socket.MSG_WAITALL)
    if len(taken) < count:
        raise ConnectionError("the other side has ended")
    return taken


if __name__ == "__main__":
    if sys.argv[1] == "sockets":
        serve(sys.argv[2], sys.argv[3:])
    else:
        asyncio.run(serve_by_loop(sys.argv[2], sys.argv[3:]))
