"""What a send costs that does nothing but cross sockets: the floor under one copy, and under a copy on another machine.

A process answers each request of a message's size; another one hands it on first, and waits for the next one's answer,
as a master waits for its replica. Blocking sockets, nothing is looked at, nothing is kept.

    python tests/bench/bare_relays.py ADDRESS [NEXT_ADDRESS PORT]      # prints its port, and serves one connection
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

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

        def started(place: Place, *arguments: str) -> CommandProgram:
            command = [*place.inside, sys.executable, str(Path(__file__).resolve()), place.address, *arguments]
            return stack.enter_context(CommandProgram(command, folder, folder / "relay.log"))

        def connected(place: Place, program: CommandProgram) -> socket.socket:
            return stack.enter_context(_connection(place.address, int(program.ready)))

        first, second = places.brokers[:2]
        alone, last = started(first), started(second)
        relay = started(first, second.address, last.ready)
        one = {"client": own_pid, "master": alone.pid}
        two = {"client": own_pid, "master": relay.pid, "replica": last.pid}
        yield [
            BareSide("bare sockets, one hop", 1, one, connected(first, alone)),
            BareSide("bare sockets, two hops", 2, two, connected(first, relay)),
        ]


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
    serve(sys.argv[1], sys.argv[2:])
