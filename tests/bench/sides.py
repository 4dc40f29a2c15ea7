"""What `bench_replication` compares: systems with one copy of a message or several, each with its processes.

A side sends the requested messages and returns the time it took. Its client is this process (`OwnSide`), or a program
of the other system that reads commands (`ExternalSide`).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from raymq.client import Admin, Connection, Message, Producer
from tests.bench.command_program import CommandProgram
from tests.broker_process import BrokerProcess
from tests.chaos.failover.network import OBSERVER, Network
from tests.replica_group import ReplicaGroup

TIMEOUT: Final = 30.0
STORE: Final[Mapping[str, int]] = {"commitlog_file_bytes": 1 << 28, "index_slots": 100_000, "index_entries": 400_000}
_CONTROL: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True, slots=True)
class Place:
    """A machine: its address, and what a command begins with that is to run there."""

    address: str = "127.0.0.1"
    inside: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """Where processes run: clients with what decides for a group, and brokers, the master first."""

    clients: Place = field(default_factory=Place)
    brokers: Sequence[Place] = (Place(), Place(), Place())


@contextmanager
def namespaces(count: int) -> Iterator[Places]:
    """So many machines for brokers as network namespaces on a bridge; clients are on one more.

    TCP there is Reno, which each of them may have: BBR would pace connections by the clock, and there is no line.
    """
    names = [f"h{number}" for number in range(1, count + 1)]
    with Network(names) as network:
        for inside in ([], *map(network.inside, names)):
            subprocess.run([*inside, "sh", "-c", f"echo reno > {_CONTROL}"], check=True)
        yield Places(Place(OBSERVER), [Place(network.address(name), network.inside(name)) for name in names])


class Side(Protocol):
    """One system in one arrangement.

    Attributes:
        name: what it is called in the results.
        copies: of each message.
        processes: their ids by what they do; "client" and "master" are among them.
        ways: its ways of sending many.
    """

    name: str
    copies: int
    processes: Mapping[str, int]
    ways: Sequence[str]

    def singles(self, count: int, size: int) -> list[float]:
        """Send so many, one at a time; the microseconds of each."""

    def many(self, way: str, count: int, size: int) -> float:
        """Send so many in batches; the seconds until all are acknowledged."""


class OwnSide:
    """Ours; the client is this process."""

    ways = ("send_batch", "send_async with linger")

    def __init__(self, name: str, copies: int, processes: Mapping[str, int], mq: Connection, stack: ExitStack) -> None:
        self.name, self.copies, self.processes = name, copies, processes
        self._plain = stack.enter_context(Producer(mq, "bench", timeout=TIMEOUT))
        self._gathering = stack.enter_context(Producer(mq, "gathering", timeout=TIMEOUT, linger=0.005))

    def singles(self, count: int, size: int) -> list[float]:
        send, body, times = self._plain.send, bytes(size), []
        for _ in range(count):
            began = time.perf_counter()
            send(Message("t", body))
            times.append((time.perf_counter() - began) * 1e6)
        return times

    def many(self, way: str, count: int, size: int) -> float:
        body = bytes(size)
        messages = [Message("t", body) for _ in range(count)]
        send: Callable[[list[Message]], object] = self._plain.send_batch if way == self.ways[0] else self._gathered
        began = time.perf_counter()
        send(messages)
        return time.perf_counter() - began

    def _gathered(self, messages: list[Message]) -> None:
        last = [self._gathering.send_async(message) for message in messages][-1]
        self._gathering.flush(TIMEOUT)
        assert last.result(0)


@contextmanager
def own_sides(places: Places, folder: Path, own_pid: int, *, modes: Sequence[str]) -> Iterator[list[Side]]:
    """One copy, and two replicas in each of these modes."""
    with ExitStack() as stack:
        made: list[Side] = []
        for mode in ("", *modes):
            below = folder / (mode or "one")
            below.mkdir()
            name_server, processes = stack.enter_context(
                _two_copies(places, below, mode) if mode else _one(places, below)
            )
            mq = stack.enter_context(closing(Connection([name_server])))
            Admin(mq).create_topic("t", queues=4)
            name = f"RayMQ, 2 replicas, {mode}" if mode else "RayMQ, one copy"
            made.append(OwnSide(name, 2 if mode else 1, {"client": own_pid, **processes}, mq, stack))
        yield made


_Running = Iterator[tuple[str, dict[str, int]]]


@contextmanager
def _one(places: Places, folder: Path) -> _Running:
    place = places.brokers[0]
    process = BrokerProcess("broker-a", folder, store=STORE, host=place.address, inside=place.inside, is_forked=False)
    try:
        yield process.name_server, {"master": process.pid}
    finally:
        process.stop()


@contextmanager
def _two_copies(places: Places, folder: Path, mode: str) -> _Running:
    machines = {number: (place.address, place.inside) for number, place in enumerate(places.brokers[:2], 1)}
    with ReplicaGroup(folder, 2, mode=mode, store=STORE, host=places.clients.address, places=machines) as group:
        group.begin()
        keeper = group.keepers.up[1].pid
        yield group.name_server, {"master": group.up[1].pid, "replica": group.up[2].pid, "keeper": keeper}


class ExternalSide:
    """Another system; its client reads the commands "single COUNT SIZE TARGET" and "many COUNT SIZE TARGET"."""

    ways = ("batches",)

    def __init__(
        self, name: str, copies: int, processes: Mapping[str, int], client: CommandProgram, target: str
    ) -> None:
        """`target`: what the client knows this side by."""
        self.name, self.copies = name, copies
        self.processes = {"client": client.pid, **processes}
        self._client = client
        self._target = target

    def singles(self, count: int, size: int) -> list[float]:
        self._client.tell(f"single {count} {size} {self._target}")
        return [float(each) for each in json.loads(self._client.answer())]

    def many(self, way: str, count: int, size: int) -> float:
        self._client.tell(f"many {count} {size} {self._target}")
        return float(self._client.answer())
