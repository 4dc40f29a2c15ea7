"""An old, full broker: for how long its loop stands still, what it holds, and how a queue's first messages go.

    python bench_age.py [--quick] [--json] [--seconds S] [--directory D] [--watch FILE]

A broker with 10,000 topics, 1 M waiting timers, 100,000 idempotent lanes, 200 index files and 5,000 groups works for
ten minutes: a lingering producer, single sends, new timers, commits, key queries, topics made and deleted. The broker
probes its own loop (`loopLongestStopMillisRecently` in its runtime table), and a loop beside it that does nothing is
probed in the same time: what that one shows is the machine's, not the broker's. --quick does the same with a
twentieth of everything, in half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from raymq import cluster
from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.event_loop_lag import PROBE_SECONDS, WINDOW_SECONDS, EventLoopLag
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.client import Admin, Message, Producer
from raymq.client.connection import Connection
from raymq.storage.config import StoreConfig
from raymq.storage.records import producer_sequence
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.broker_process import BrokerProcess

QUEUES = 4
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Age:
    """How much the broker has."""

    topics: int = 10_000
    timers: int = 1_000_000
    lanes: int = 100_000
    index_files: int = 200
    groups: int = 5_000
    new_topics: int = 2_500
    seconds: float = 600.0

    def divided(self, by: int, seconds: float) -> Age:
        """A part of everything."""
        counts = {name: max(1, value // by) for name, value in asdict(self).items() if isinstance(value, int)}
        return Age(**counts, seconds=seconds)


@dataclass
class Row:
    """One line of the table."""

    name: str
    value: float
    unit: str
    beside: str = ""

    def __str__(self) -> str:
        return f"{self.name:58} {self.value:12,.1f} {self.unit:10} {self.beside}"


def record(topic: str, queue_id: int, number: int, **properties: str) -> bytes:
    names = encode_properties({"UNIQ_KEY": f"U{number:031d}", **properties})
    now_ms = time.time_ns() // 1_000_000
    return encode(topic, queue_id, b"x" * 100, names, born_timestamp_ms=now_ms, born_host=bytes(8))


def make_old_directory(directory: Path, age: Age) -> None:
    """Make a broker's directory as after years of use."""
    keys = age.timers + age.lanes
    config = StoreConfig(index_slots=5_000, index_entries=keys // age.index_files + 1, disk_refuse_ratio=1.0)
    rng = random.Random(13)
    with Store.open(directory, config) as store:
        core = BrokerCore("broker-a", store)
        store.topic_configs.put(*(TopicConfig(f"t{n}", QUEUES, QUEUES) for n in range(age.topics)))
        store.group_configs.put(*(GroupConfig(f"g{n}") for n in range(age.groups)))
        history = ProducerStateJournal(core.producers, store)
        for n in range(age.lanes):
            one = bytearray(record(f"t{n % age.topics}", n // age.topics % QUEUES, n))
            producer_sequence.stamp_first(one, ProducerSequence(f"{n // (age.topics * QUEUES):016x}", 0, 0, 1))
            core.append_one(store.check_one(one), sequenced=True)
        now_ms = time.time_ns() // 1_000_000
        for first in range(0, age.timers, 1000):
            due = [str(now_ms + HOUR_MS + rng.randrange(24 * HOUR_MS)) for _ in range(1000)]
            waiting = [record("t0", 0, first + n, TIMER_DELIVER_MS=each) for n, each in enumerate(due)]
            sizes = np.array([len(each) for each in waiting], np.int32)
            core.append("t0", 0, memoryview(b"".join(waiting)), sizes, delayed=True)
        for n in range(age.groups):
            for topic in rng.sample(range(age.topics), min(10, age.topics)):
                store.consumer_offsets.commit(f"g{n}", f"t{topic}", 0, 1)
        for write in history.save():
            write()
        core.timers.close()


async def probe_loop() -> None:
    """A loop with nothing to do, until standard input ends; prints what a broker would tell every ten seconds.

    The last line is the longest stop of all. All are milliseconds.
    """
    loop, stops = asyncio.get_running_loop(), EventLoopLag(time.monotonic)

    def beat() -> None:
        stops.beat()
        loop.call_later(PROBE_SECONDS, beat)

    def tell() -> None:
        print(1000 * stops.recent)
        loop.call_later(WINDOW_SECONDS, tell)

    beat()
    loop.call_later(WINDOW_SECONDS, tell)
    await asyncio.to_thread(sys.stdin.read)
    print(1000 * stops.longest, flush=True)


def send_as_another_client(name_server: str) -> None:
    """Send until standard input ends; prints the 99th percentile of a send in milliseconds."""
    seconds: list[float] = []
    stopped = threading.Event()
    with cluster.connect(name_servers=name_server) as mq, Producer(mq, group="other") as producer:
        producer.send(Message("t1", b"x"))
        threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
        print("ready", flush=True)
        while not stopped.wait(0.002):
            began = time.perf_counter()
            producer.send(Message("t1", b"x" * 200))
            seconds.append(time.perf_counter() - began)
    print(1000 * float(np.percentile(seconds, 99)), flush=True)


@contextmanager
def another_client(name_server: str, found: list[float]) -> Iterator[None]:
    """A client in a process of its own sends meanwhile: the interpreter of this one is busy."""
    command = [sys.executable, __file__, "--send-to", name_server]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    try:
        yield
    finally:
        out, _ = client.communicate(timeout=60)
        found.append(float(out))


@contextmanager
def idle_loop(found: list[float]) -> Iterator[None]:
    """Probe a loop in another process meanwhile; `found` gets the output of `probe_loop`."""
    probe = subprocess.Popen([sys.executable, __file__, "--probe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield
    finally:
        out, _ = probe.communicate(timeout=60)
        found.extend(map(float, out.split()))


class Broker:
    """The running broker and what it says of itself."""

    def __init__(self, directory: Path) -> None:
        self.process = BrokerProcess("broker-a", directory, is_forked=False)
        self.os = psutil.Process(self.process.pid)
        self.mq = cluster.connect(name_servers=self.process.name_server)
        self.address = json.loads((directory / "broker-a" / "raymq" / "broker.json").read_text())["port"]

    def figures(self) -> dict[str, str]:
        async def ask() -> Command:
            pool = ConnectionPool()
            try:
                return await pool.request(
                    f"127.0.0.1:{self.address}", Command(RequestCode.GET_BROKER_RUNTIME_INFO), 60.0
                )
            finally:
                await pool.close()

        table: dict[str, str] = json.loads(bytes(asyncio.run(ask()).body))["table"]
        return table

    def recent_stop_ms(self) -> float:
        return float(self.figures()["loopLongestStopMillisRecently"])


class Work:
    """Threads that each do one thing again and again until `stop`; how long each call took, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.errors: dict[str, int] = {}
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def every(self, name: str, seconds: float, call: Callable[[], object]) -> None:
        self.seconds[name], self.errors[name] = [], 0

        def run() -> None:
            while not self._stopped.wait(seconds):
                began = time.perf_counter()
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - counted, and the first one is told
                    if not self.errors[name]:
                        print(f"{name}: {error!r}", file=sys.stderr)
                    self.errors[name] += 1
                self.seconds[name].append(time.perf_counter() - began)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def p99_ms(self, name: str) -> float:
        return float(np.percentile(self.seconds[name], 99)) * 1000 if self.seconds[name] else float("nan")


def mixed_work(broker: Broker, age: Age, mq: Connection) -> Iterator[Row]:
    """What an ordinary day brings, all at the same time."""
    admin, rng, work, idle = Admin(mq), random.Random(1), Work(), list[float]()
    any_topic = lambda: f"t{rng.randrange(age.topics)}"  # noqa: E731
    stops: list[float] = []
    with (
        Producer(mq, group="bulk", linger=0.02, timeout=30.0) as bulk,
        Producer(mq, group="single") as single,
        Producer(mq, group="numbered", idempotent=True) as numbered,
        idle_loop(idle),
    ):
        work.every("bulk", 0.05, lambda: [bulk.send_async(Message(any_topic(), b"x" * 200)) for _ in range(100)])
        work.every("single send", 0.005, lambda: single.send(Message(any_topic(), b"x" * 200)))
        work.every("idempotent send", 0.01, lambda: numbered.send(Message(any_topic(), b"x" * 200)))
        work.every(
            "timer", 0.02, lambda: single.send(Message(any_topic(), b"x", deliver_at=time.time() + 60 * rng.random()))
        )
        work.every("query", 0.5, lambda: admin.query_by_key(any_topic(), "nothing"))
        made = iter(range(1_000_000))

        def make_and_delete() -> None:
            name = f"passing{next(made)}"
            admin.create_topic(name, queues=QUEUES)
            for _ in range(QUEUES):
                single.send(Message(name, b"x"))
            admin.delete_topic(name)

        work.every("topic made and deleted", 5.0, make_and_delete)
        ends = time.monotonic() + age.seconds
        while time.monotonic() < ends:
            time.sleep(min(10.0, max(0.1, ends - time.monotonic())))
            stops.append(broker.recent_stop_ms())
        work.stop()
    # The machine stops every process now and then: what a broker adds to that is what its users wait for.
    typical = float(np.median(stops)), float(np.median(idle))
    yield Row("longest stop of the loop", max(stops), "ms", f"goal < 20 more than an idle loop: {idle[-1]:.1f}")
    yield Row(
        "longest stop, median of ten seconds", typical[0], "ms", f"goal < 20 more than an idle loop: {typical[1]:.1f}"
    )
    for name in work.seconds:
        if name != "bulk":
            yield Row(f"{name}, p99", work.p99_ms(name), "ms", f"{len(work.seconds[name])} calls")
    yield Row("calls that failed", sum(work.errors.values()), "", "goal 0")


def first_messages(broker: Broker, age: Age, mq: Connection) -> Iterator[Row]:
    """One message to each queue of many new topics, while another client sends."""
    count = age.new_topics * QUEUES
    broker.process.tell(f"topics {age.new_topics} {QUEUES}")
    p99_ms, idle = list[float](), list[float]()
    with Producer(mq, group="first", linger=0.02, timeout=60.0) as first:
        names = [f"new{n}" for n in range(age.new_topics)]
        ready = Admin(mq)
        while names[-1] not in ready.topics():
            time.sleep(0.2)
        time.sleep(2 * WINDOW_SECONDS)  # what was before is not recent then
        with idle_loop(idle), another_client(broker.process.name_server, p99_ms):
            began = time.perf_counter()
            waiting = [first.send_async(Message(name, b"x" * 200)) for name in names for _ in range(QUEUES)]
            failed = sum(each.exception(120) is not None for each in waiting)
            took = time.perf_counter() - began
    yield Row(f"{count:,} first messages", took, "s", f"goal < {10 * count / 10_000:.1f}")
    yield Row("first messages that failed", failed, "", "goal 0")
    yield Row("another client's send meanwhile, p99", p99_ms[0], "ms", "goal < 10")
    yield Row("longest stop of the loop meanwhile", broker.recent_stop_ms(), "ms", f"an idle loop: {idle[-1]:.1f}")


def copy(source: Path, target: Path) -> None:
    """Copy a directory with sparse files."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def resource_use(broker: Broker, directory: Path) -> Iterator[Row]:
    """Memory, descriptors, disk."""
    blocks = sum(path.lstat().st_blocks for path in directory.rglob("*"))
    yield Row("resident memory", broker.os.memory_info().rss / 2**20, "MiB", "with the mapped parts of files")
    full = broker.os.memory_full_info()
    yield Row("memory of its own", full.uss / 2**20, "MiB", "what its end would free")
    yield Row("descriptors", broker.os.num_fds(), "", f"limit {broker.os.rlimit(psutil.RLIMIT_NOFILE)[0]}")
    yield Row(
        "size on disk", blocks * 512 / 2**20, "MiB", f"{sum(1 for _ in directory.rglob('*')):,} files and folders"
    )


def run(age: Age, kept: Path | None = None) -> list[Row]:
    """All rows; with the directory `kept`, a copy of what is made stays there for the next run."""
    rows: list[Row] = []

    def add(found: Iterator[Row]) -> None:
        for row in found:
            rows.append(row)
            print(row, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        began = time.perf_counter()
        if kept is None or not kept.exists():
            make_old_directory(directory / "broker-a", age)
            if kept is not None:
                copy(directory / "broker-a", kept)
        else:
            copy(kept, directory / "broker-a")
        print(f"made in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        began = time.perf_counter()
        broker = Broker(directory)
        try:
            add(iter([Row("start", time.perf_counter() - began, "s")]))
            with broker.mq as mq:
                add(mixed_work(broker, age, mq))
                add(first_messages(broker, age, mq))
                add(resource_use(broker, directory))
        finally:
            began = time.perf_counter()
            broker.process.stop(300)
        add(iter([Row("stop", time.perf_counter() - began, "s")]))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything")
    parser.add_argument("--seconds", type=float, help="of mixed work")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="made old in here, and used again as it is by a later run")
    parser.add_argument("--watch", type=Path, help="a file for the stacks of the loop while it stood still")
    parser.add_argument("--send-to", help=argparse.SUPPRESS)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.probe:
        asyncio.run(probe_loop())
    elif asked.send_to:
        send_as_another_client(asked.send_to)
    else:
        whole = Age().divided(20, asked.seconds or 25.0) if asked.quick else Age(seconds=asked.seconds or 600.0)
        if asked.watch:
            os.environ["LOOP_WATCH"] = str(asked.watch)
        result = run(whole, asked.directory)
        if asked.json:
            print(json.dumps([asdict(row) for row in result]))
