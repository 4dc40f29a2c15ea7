"""Draining a backlog with each consumer, beside a bare socket, Kafka and RabbitMQ streams in the same run; end-to-end
latency beside Redis Streams.

Run by `make bench-consume`. Prints a table, with --json a JSON value; --size and --only leave out the rest. Servers run
in processes of their own. Compare ratios, not times: the machine is shared. A backlog (80 and 400 MB) is drained once
to warm up, then `ROUNDS` times; the median counts. Bare sockets, `fetch_table` and `poll` take turns, so that a change
of the machine's speed meets all of them. One socket is as a program opens it, with the system's congestion control,
the other one without pacing. "CPU" is what one message costs this process and the broker's, and the listener's where
that is another one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.bench_produce import Bench, Row, broker, cpu_us, report
from tests.bench.foreign import foreign_rows
from tests.bench.foreign_consumers import (  # the same work for all of them
    ASKED,
    BODY_BYTES,
    MESSAGES,
    PACE_PER_SECOND,
    PACED,
    POLLED,
    QUEUES,
    ROUNDS,
    TIMEOUT,
)

SIZES = (100, 1024)
#: Small polls: how many, and of how many messages.
SMALL_POLLS = 1_000
SMALL = 32
#: What a push consumer takes of them,
PUSHED = POLLED
#: and what one takes that has them lent: of those that come one at a time fewer, for each costs a round trip.
LENT = {32: 20_000, 1: 2_000}

#: As a program opens it, and with a congestion control that does not send by the clock
#: (`raymq.actors.wire.tcp_pacing`).
SOCKETS = {
    "baseline: socket, out of a mapped file": "",
    "baseline: unpaced socket, out of a mapped file": "reno",
}
SOCKET_BYTES = 512 << 20
SENDER = """
import mmap, socket, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as out:
        if sys.argv[3]:
            out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[3].encode())
        out.recv(1)
        out.sendall(mapped)
"""

LISTENER = Path(__file__).with_name("latency_consumer.py")

PARTS = ("socket", "pull", "push", "pop", "kafka", "rabbitmq", "latency", "redis")
#: What is compared with what, and what it should be at least: a name's beginning, the beginnings of the others'.
RATIOS = (
    ("poll", ("baseline: Kafka", "baseline: RabbitMQ"), 1.0),
    ("fetch_table", ("baseline: Kafka", "baseline: RabbitMQ"), 2.0),
    ("fetch_table", ("baseline: socket",), 0.6),
    ("fetch_table", ("baseline: unpaced socket",), 0.6),
    ("PushConsumer, one at a time", ("baseline: aiokafka",), 1.0),
    ("PushConsumer, one at a time", ("baseline: Kafka, poll",), 0.25),
)


class Countdown:
    """A listener that knows when it has had so many messages."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self._lock = threading.Lock()
        self.done = threading.Event()

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        with self._lock:
            self._left -= len(messages)
            if self._left <= 0:
                self.done.set()
        return ConsumeResult.SUCCESS


def run(sizes: list[int], parts: list[str]) -> list[Row]:
    """All rows: name, value, unit, and p99 or the CPU of client and broker in us per message."""
    bench = Bench()
    sockets = "socket" in parts
    if sockets and "pull" not in parts:
        for size in sizes:
            _rates(bench, size, _sockets(size), None)
    drained = [system for system in ("kafka", "rabbitmq") if system in parts]
    bench.rows += foreign_rows("foreign_consumers.py", drained, list(map(str, sizes)))
    if {"pull", "push", "pop", "latency"} & set(parts):
        with broker() as (name_server, far), Connection([name_server]) as mq:
            if {"pull", "push", "pop"} & set(parts):
                for size in sizes:
                    _fill(mq, size)
                    if "pull" in parts:
                        _pull(bench, mq, far, size, beside_a_socket=sockets)
                    if "push" in parts:
                        _push(bench, mq, far, size)
                    if "pop" in parts:
                        _lent(bench, mq, far, size)
            if "latency" in parts:
                _end_to_end(bench, mq, far)
    if "redis" in parts:
        bench.rows += foreign_rows("foreign_consumers.py", ["redis"])
    for size in sizes:
        bench.rows += _ratios(bench.rows, size)
    return bench.rows


def _sockets(size: int) -> dict[str, Callable[[], float]]:
    return {name: _socket_seconds(size, congestion_control) for name, congestion_control in SOCKETS.items()}


def _socket_seconds(size: int, congestion_control: str) -> Callable[[], float]:
    """What this process takes to receive the backlog's bytes over TCP, of a file that another one has mapped."""

    def receive() -> float:
        with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listening:
            for _ in range(SOCKET_BYTES >> 20):
                file.write(bytes(1 << 20))
            file.flush()
            port = str(listening.getsockname()[1])
            sender = subprocess.Popen([sys.executable, "-c", SENDER, file.name, port, congestion_control])
            receiving, _ = listening.accept()
            with receiving:
                left, buffer = SOCKET_BYTES, bytearray(1 << 20)
                receiving.sendall(b"1")
                began = time.perf_counter()
                while left:
                    left -= receiving.recv_into(buffer)
                seconds = time.perf_counter() - began
            sender.wait(TIMEOUT)
        return seconds * MESSAGES[size] * size / SOCKET_BYTES

    return receive


def _fill(mq: Connection, size: int) -> None:
    topic, count = f"t{size}", MESSAGES[size] // QUEUES
    Admin(mq).create_topic(topic, queues=QUEUES)
    table = pa.table({"body": pa.array([bytes(size)] * count, pa.binary())})
    with Producer(mq, "bench", timeout=TIMEOUT) as producer, PullConsumer(mq, "bench") as consumer:
        for queue in consumer.queues(topic):
            producer.send_table(topic, table, "body", queue=queue)
    os.sync()  # what the disk still has to take would be measured, too


def _pull(bench: Bench, mq: Connection, far: psutil.Process, size: int, *, beside_a_socket: bool) -> None:
    with PullConsumer(mq, "bench") as consumer:
        queues = consumer.queues(f"t{size}")

        def drain(take: Callable[..., object]) -> float:
            began = time.perf_counter()
            left = MESSAGES[size]
            for queue in queues:
                consumer.seek(queue, 0)
                while got := len(take(queue, ASKED, 0.0)):  # type: ignore[arg-type]
                    left -= got
            assert left == 0
            return time.perf_counter() - began

        drains = {name: partial(drain, getattr(consumer, name)) for name in ("fetch_table", "poll")}
        _rates(bench, size, (_sockets(size) if beside_a_socket else {}) | drains, far)

        def small() -> None:
            consumer.seek(queues[0], 0)
            for _ in range(SMALL_POLLS):
                assert len(consumer.poll(queues[0], SMALL, 0.0)) == SMALL

        async def small_on_loop() -> None:
            await consumer.aseek(queues[0], 0)
            for _ in range(SMALL_POLLS):
                assert len(await consumer.apoll(queues[0], SMALL, 0.0)) == SMALL

        # By the thread over its own socket, and by the event loop.
        _rate(bench, f"poll({SMALL}), {size} B", SMALL_POLLS * SMALL, small, far)
        _rate(bench, f"apoll({SMALL}), {size} B", SMALL_POLLS * SMALL, lambda: asyncio.run(small_on_loop()), far)


def _push(bench: Bench, mq: Connection, far: psutil.Process, size: int) -> None:
    for batch_size, ordered in ((32, False), (1, False), (32, True), (1, True)):
        groups = iter(range(ROUNDS + 1))

        def drain(batch_size: int = batch_size, ordered: bool = ordered, groups: object = groups) -> None:
            countdown = Countdown(PUSHED)
            group = f"g-{size}-{batch_size}-{ordered}-{next(groups)}"  # type: ignore[call-overload]
            with PushConsumer(mq, group, {f"t{size}": "*"}, countdown, batch_size=batch_size, ordered=ordered):
                assert countdown.done.wait(TIMEOUT)

        how = ("ordered, " if ordered else "") + (f"batches of {batch_size}" if batch_size > 1 else "one at a time")
        _rate(bench, f"PushConsumer, {how}, {size} B", PUSHED, drain, far)


def _lent(bench: Bench, mq: Connection, far: psutil.Process, size: int) -> None:
    for batch_size, count in LENT.items():
        groups = iter(range(ROUNDS + 1))

        def drain(batch_size: int = batch_size, count: int = count, groups: object = groups) -> None:
            countdown = Countdown(count)
            group = f"l-{size}-{batch_size}-{next(groups)}"  # type: ignore[call-overload]
            with PushConsumer(mq, group, {f"t{size}": "*"}, countdown, batch_size=batch_size, mode="pop"):
                assert countdown.done.wait(TIMEOUT)

        how = f"batches of {batch_size}" if batch_size > 1 else "one at a time"
        _rate(bench, f'PushConsumer(mode="pop"), {how}, {size} B', count, drain, far)


def _rates(bench: Bench, size: int, drains: dict[str, Callable[[], float]], far: psutil.Process | None) -> None:
    """Rows of what drains a backlog in the seconds that it says; a baseline's without the processor time."""
    seconds: dict[str, list[float]] = {name: [] for name in drains}
    spent: dict[str, list[list[float]]] = {name: [] for name in drains}
    processes = [psutil.Process(), *([] if far is None else [far])]
    for _ in range(ROUNDS + 1):
        for name, drain in drains.items():
            before = [cpu_us(process) for process in processes]
            seconds[name].append(drain())
            spent[name].append([cpu_us(process) - first for process, first in zip(processes, before, strict=True)])
    for name, taken in seconds.items():
        rate = round(MESSAGES[size] / statistics.median(taken[1:]))
        row: Row = {"name": f"{name}, {size} B", "value": rate, "unit": "messages/s"}
        if not name.startswith("baseline"):
            row["cpu_us"] = [round(sum(us) / MESSAGES[size] / ROUNDS, 2) for us in zip(*spent[name][1:], strict=True)]
        bench.rows.append(row)


def _rate(bench: Bench, name: str, count: int, drain: Callable[[], None], far: psutil.Process) -> None:
    drain()
    processes = (psutil.Process(), far)
    before = [cpu_us(process) for process in processes]
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        drain()
        seconds.append(time.perf_counter() - began)
    cpu = [
        round((cpu_us(process) - first) / count / ROUNDS, 2) for process, first in zip(processes, before, strict=True)
    ]
    rate = round(count / statistics.median(seconds))
    bench.rows.append({"name": name, "value": rate, "unit": "messages/s", "cpu_us": cpu})


def _end_to_end(bench: Bench, mq: Connection, far: psutil.Process) -> None:
    """From before the call of send here to the call of the listener in another process."""
    Admin(mq).create_topic("latency", queues=1)
    listening = subprocess.Popen(
        [sys.executable, str(LISTENER), *mq.name_servers, "latency", str(PACED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listening.stdout is not None
    assert listening.stdout.readline() == "ready\n"
    processes = (psutil.Process(), far, psutil.Process(listening.pid))
    before = [cpu_us(process) for process in processes]
    padding = bytes(BODY_BYTES - struct.calcsize("d"))
    with Producer(mq, "bench") as producer:
        due = time.perf_counter()
        for _ in range(PACED):
            due += 1 / PACE_PER_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            producer.send(Message("latency", struct.pack("d", time.perf_counter()) + padding))
    times = json.loads(listening.stdout.readline())
    cpu = [round((cpu_us(process) - first) / PACED) for process, first in zip(processes, before, strict=True)]
    listening.communicate(timeout=TIMEOUT)
    ordered = sorted(seconds * 1e6 for seconds in times[PACED // 10 :])
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    name = "send to listener of another process, 1,000 messages/s, 1 KiB"
    bench.rows.append({"name": name, "value": round(p50), "unit": "us p50", "p99": round(p99), "cpu_us": cpu})


def _ratios(rows: list[Row], size: int) -> list[Row]:
    """How the consumers compare with the best of what they are measured against."""
    rates = {
        str(row["name"]): int(str(row["value"]))
        for row in rows
        if str(row["name"]).endswith(f", {size} B") and row["unit"] == "messages/s"
    }
    found: list[Row] = []
    for name, others, goal in RATIOS:
        against = {other: rate for other, rate in rates.items() if other.startswith(others)}
        if against and f"{name}, {size} B" in rates:
            best = max(against, key=lambda other: against[other])
            ratio = round(rates[f"{name}, {size} B"] / against[best], 2)
            title = f"{name} / {best.removeprefix('baseline: ')}"
            found.append({"name": title, "value": ratio, "unit": f"x, goal {goal:g}"})
    return found


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    parser.add_argument("--size", type=int, choices=SIZES, action="append", help="of bodies; both by default")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="what to measure")
    arguments = parser.parse_args()
    report(run(arguments.size or list(SIZES), arguments.only), as_json=arguments.json)


if __name__ == "__main__":
    main()
