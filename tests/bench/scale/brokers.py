"""The brokers that are measured: each a process that can be stopped, killed and started on what it has."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from raymq import cluster
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec
from raymq.client import MessageQueue, Producer
from raymq.storage.config import StoreConfig
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.bench.scale.plain_client import PlainClient
from tests.bench.scale.size import Size
from tests.broker_process import BrokerProcess

STOP_SECONDS: Final = 600.0
START_SECONDS: Final = 900.0
NAME: Final = "broker-a"
#: By its default a broker refuses what waits for 0.2 s, and clients come again; these wait.
_WAIT_MS: Final = 30_000


class Broker(Protocol):
    """One broker on its directory. The topics are t0, t1, ...

    Attributes:
        name: what it is called in the results.
        size: what it is to hold here.
        pid: of its process, while it runs.
        address: "host:port", the same each time.
    """

    name: str
    size: Size
    pid: int
    address: str

    def make_topics(self, count: int) -> None:
        """Have so many topics with the next start. It does not run."""

    def start(self) -> float:
        """Start it; the seconds until it has acknowledged a message."""

    def stop(self) -> float:
        """Stop it cleanly; the seconds that takes."""

    def kill(self) -> None:
        """SIGKILL."""

    def fill(self, advance: Callable[[int], None]) -> None:
        """Send `size.rounds` batches to each queue, by the fastest way; `advance` is told how many messages went."""


def seconds_until_it_answers(address: str, began: float, is_dead: Callable[[], bool]) -> float:
    """Send a message to the first topic again and again; the seconds since `began` when it is acknowledged."""
    deadline = began + START_SECONDS
    while True:
        try:
            with PlainClient(address, 100) as client:
                client.send("t0", 0)
            return time.monotonic() - began
        except (OSError, AssertionError):
            if is_dead() or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class OwnBroker:
    """Ours, in a process without Ray; the name server is in this one."""

    name = "RayMQ"

    def __init__(self, folder: Path, size: Size, stack: ExitStack) -> None:
        self.size = size
        self._folder = folder
        self._loop = EventLoopThread("names")
        stack.callback(self._loop.stop)
        service = self._loop.run(NameServerService.start(NameServerSpec(0, str(folder), "127.0.0.1", 0)))
        stack.callback(lambda: self._loop.run(service.stop(), 10))
        self._name_server = service.address
        self._process: BrokerProcess | None = None
        stack.callback(self._end)
        self.pid, self.address = 0, ""

    def make_topics(self, count: int) -> None:
        with Store.open(self._folder / NAME, StoreConfig()) as store:
            store.topic_configs.put(*(TopicConfig(f"t{n}", self.size.queues, self.size.queues) for n in range(count)))

    def start(self) -> float:
        began = time.monotonic()
        if self._process is None:
            self._process = BrokerProcess(
                NAME, self._folder, self._name_server, append_wait_ms=_WAIT_MS, is_forked=False
            )
        else:
            self._process.start()
        told = json.loads((self._folder / NAME / "raymq" / "broker.json").read_text())
        self.pid, self.address = self._process.pid, f"127.0.0.1:{told['port']}"
        process = self._process
        return seconds_until_it_answers(self.address, began, lambda: process.is_dead)

    def stop(self) -> float:
        assert self._process is not None
        began = time.monotonic()
        self._process.stop(STOP_SECONDS)
        return time.monotonic() - began

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def fill(self, advance: Callable[[int], None]) -> None:
        size = self.size
        table = pa.table({"body": pa.array([b"x" * size.body_bytes] * size.batch, pa.binary())})
        with self.producer() as producer:
            for _ in range(size.rounds):
                for topic in range(size.topics):
                    for queue_id in range(size.queues):
                        queue = MessageQueue(f"t{topic}", NAME, queue_id)
                        producer.send_table(queue.topic, table, "body", queue=queue)
                    advance(size.batch * size.queues)

    @contextmanager
    def producer(self) -> Iterator[Producer]:
        """Our own client."""
        with (
            cluster.connect(name_servers=self._name_server) as mq,
            Producer(mq, "scale", timeout=STOP_SECONDS) as producer,
        ):
            yield producer

    def _end(self) -> None:
        if self._process is not None and not self._process.is_dead:
            self._process.kill()
        if self._process is not None:
            self._process.close_pipes()


@contextmanager
def own_broker(folder: Path, size: Size) -> Iterator[OwnBroker]:
    """Its process is killed at the end, if it still runs."""
    with ExitStack() as stack:
        yield OwnBroker(folder, size, stack)


@contextmanager
def held_connections(address: str, count: int) -> Iterator[None]:
    """So many connections of consumers, in a process beside this one."""
    command = [sys.executable, str(Path(__file__).with_name("held_connections.py")), address, str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise ChildProcessError(f"{count} connections could not be held")
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)
