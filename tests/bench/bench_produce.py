"""Producing, beside a bare asyncio echo, bare sockets, Ray's calls and queue, Redis and Kafka in the same run.

Run by `make bench-produce`. Prints a table, with --json a JSON value; --own leaves out Redis and Kafka, --only names
what to measure and --size of which messages. The broker runs in a process of its own. Compare ratios, not times: the
machine is shared. A throughput is measured `ROUNDS` times, each with memory at hand that was touched before
(`memory.py`, which says why), and the best round counts: what disturbs only ever adds. "CPU" is what one message costs
this process and the broker's, over all rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import ray
from ray.util.queue import Queue
from rich.table import Table

from raymq.client import Admin, Connection, Message, Producer
from raymq.cluster import ray_runtime
from raymq.cluster.output import console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.bench_cluster import Empty, echo_call, latency_us
from tests.bench.foreign import foreign_rows, foreign_times
from tests.bench.memory import TouchedMemory
from tests.bench.placement import apart
from tests.bench.sockets import KEPT_PIECES, sent_bytes_per_second
from tests.broker_process import BrokerProcess

SINGLES = 2_000
#: Single sends are measured in so many turns of so many calls.
TURNS, TURN = 20, 200
SIZES = (100, 1024)
#: What can be asked for: Ray's calls, other systems, bare sockets, single sends, many messages.
PARTS = ("ray", "foreign", "socket", "single", "many")
MESSAGES = {100: 400_000, 1024: 150_000}
ROUNDS = 4
#: What is measured of each size, and how many pieces of touched memory a round takes.
MODES = 4
PIECES = {100: 1, 1024: 2}
SOCKETS = {
    "socket, 1 MiB writes": {},
    "unpaced socket, 1 MiB writes": {"unpaced": True},
    "unpaced socket, 1 MiB writes, into a mapped file": {"unpaced": True, "kept": True},
}
TIMEOUT = 30.0

Row = dict[str, object]


@contextmanager
def broker() -> Iterator[tuple[str, psutil.Process]]:
    """A name server's address and the process of its broker."""
    with tempfile.TemporaryDirectory() as directory:
        process = BrokerProcess("broker-a", Path(directory), is_forked=False)
        try:
            yield process.name_server, psutil.Process(process.pid)
        finally:
            process.stop()


def cpu_us(process: psutil.Process) -> float:
    """Processor time of a process, microseconds."""
    times = process.cpu_times()
    return (times.user + times.system) * 1e6


class Bench:
    """Collects rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def latency(self, name: str, call: Callable[[], object], count: int = SINGLES) -> None:
        p50, p99 = latency_us(call, count)
        self.rows.append({"name": name, "value": round(p50), "unit": "us p50", "p99": round(p99)})

    def rate(
        self, name: str, count: int, call: Callable[[], object], far: psutil.Process, give: Callable[[], None]
    ) -> None:
        processes = (psutil.Process(), far)
        before = [cpu_us(process) for process in processes]
        seconds = []
        for _ in range(ROUNDS):
            give()
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
        cpu = [
            round((cpu_us(process) - first) / count / ROUNDS, 2)
            for process, first in zip(processes, before, strict=True)
        ]
        rate = round(count / min(seconds))
        self.rows.append({"name": name, "value": rate, "unit": "messages/s", "cpu_us": cpu})


def run(parts: Collection[str], sizes: Sequence[int]) -> list[Row]:
    """All rows of `parts`: name, value, unit, and p99 or the CPU of client and broker in us per message."""
    bench = Bench()
    if "ray" in parts:
        actor = Empty.remote()
        ray.get(actor.call.remote())
        bench.latency("baseline: empty Ray actor call", lambda: ray.get(actor.call.remote()), SINGLES // 4)
        queue = Queue(actor_options={"num_cpus": 0})
        bench.latency("baseline: ray.util.queue.Queue.put, 1 KiB", lambda: queue.put(bytes(1024)), SINGLES // 4)
        queue.shutdown()
    if "foreign" in parts:
        bench.rows += foreign_rows("foreign_programs.py", ("kafka",))
    if "socket" in parts:
        bench.latency("baseline: bare asyncio echo, 1 KiB", echo_call())
        for name, how in SOCKETS.items():
            memory = TouchedMemory(ROUNDS * KEPT_PIECES if "kept" in how else 0)
            rate = max(sent_bytes_per_second(memory, **how) for _ in range(ROUNDS))
            bench.rows += [
                {"name": f"baseline: {name}, {size} B", "value": round(rate / size), "unit": "messages/s"}
                for size in sizes
            ]
    if "single" in parts or "many" in parts:
        memory = TouchedMemory(sum(PIECES[size] for size in sizes) * MODES * ROUNDS if "many" in parts else 0)
        with broker() as (name_server, far), Connection([name_server]) as mq:
            Admin(mq).create_topic("t", queues=4)
            if "single" in parts:
                _singles(bench, mq, far, with_redis="foreign" in parts)
            if "many" in parts:
                for size in sizes:
                    _throughput(bench, mq, far, size, memory)
    return bench.rows


def _singles(bench: Bench, mq: Connection, far: psutil.Process, *, with_redis: bool) -> None:
    """In turns, a few calls of each at a time, client and server each on a core of its own."""
    body = bytes(1024)
    cpu: dict[str, list[float]] = {}

    def timed(name: str, producer: Producer) -> Callable[[int], list[float]]:
        def times(count: int) -> list[float]:
            processes = (psutil.Process(), far)
            before = [cpu_us(process) for process in processes]
            times = []
            with apart(far.pid):
                for _ in range(count):
                    began = time.perf_counter()
                    producer.send(Message("t", body))
                    times.append((time.perf_counter() - began) * 1e6)
            spent = [cpu_us(process) - first for process, first in zip(processes, before, strict=True)]
            cpu[name] = [sum(both) for both in zip(cpu.get(name, (0.0, 0.0)), spent, strict=True)]
            return times

        return times

    with ExitStack() as stack:
        plain, idempotent = (
            stack.enter_context(Producer(mq, "bench", timeout=TIMEOUT, idempotent=each)) for each in (False, True)
        )
        calls = {"send": timed("send", plain), "send, idempotent": timed("send, idempotent", idempotent)}
        if with_redis:
            try:
                name, redis_times = stack.enter_context(foreign_times("foreign_programs.py", "redis"))
                calls = {f"baseline: {name}": redis_times, **calls}
            except (OSError, subprocess.SubprocessError) as error:
                bench.rows.append({"name": "baseline: redis", "value": 0, "unit": f"not available: {error}"})
        for times in calls.values():
            times(TURN)
        cpu.clear()
        found: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(TURNS):
            for name, times in calls.items():
                found[name] += times(TURN)
    for name, every in found.items():
        row: Row = {"name": f"{name}, 1 KiB, one at a time", "value": round(statistics.median(every)), "unit": "us p50"}
        row["p99"] = round(sorted(every)[int(len(every) * 0.99)])
        if name in cpu:
            row["cpu_us"] = [round(spent / len(every)) for spent in cpu[name]]
        bench.rows.append(row)


def _throughput(bench: Bench, mq: Connection, far: psutil.Process, size: int, memory: TouchedMemory) -> None:
    count, body = MESSAGES[size], bytes(size)
    messages = [Message("t", body) for _ in range(count)]
    table = pa.table({"body": pa.array([body] * count, pa.binary())})

    def gathered(make: Callable[[], Iterable[Message]]) -> None:
        with Producer(mq, "bench", timeout=TIMEOUT, linger=0.005) as producer:
            futures = [producer.send_async(message) for message in make()]
            producer.flush(TIMEOUT)
            assert futures[-1].result(0)

    def made_on_the_way() -> Iterator[Message]:
        return (Message("t", body) for _ in range(count))

    with Producer(mq, "bench", timeout=TIMEOUT) as producer:
        calls = {
            "send_table": lambda: producer.send_table("t", table, "body"),
            "send_batch": lambda: producer.send_batch(messages),
            "send_async with linger, messages ready-made": lambda: gathered(lambda: messages),
            "send_async with linger, messages made on the way": lambda: gathered(made_on_the_way),
        }
        assert len(calls) == MODES
        for name, call in calls.items():
            bench.rate(f"{name}, {size} B", count, call, far, lambda: memory.give(PIECES[size]))


def report(rows: list[Row], *, as_json: bool) -> None:
    """Print rows as one JSON value and nothing else, or as a table."""
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("what", "value", "unit", "p99", "CPU us/message: client, broker")
    for row in rows:
        table.add_row(
            str(row["name"]),
            f"{row['value']:,}",
            str(row["unit"]),
            str(row.get("p99", "")),
            ", ".join(map(str, row.get("cpu_us", ()))),  # type: ignore[call-overload]
        )
    console().print(table)


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    parser.add_argument("--own", action="store_true", help="without Redis and Kafka, which are fetched if need be")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="what to measure")
    parser.add_argument("--size", type=int, choices=SIZES, nargs="+", default=SIZES, help="messages of so many bytes")
    arguments = parser.parse_args()
    parts = [part for part in arguments.only if not (arguments.own and part == "foreign")]
    if "ray" in parts:
        ray_runtime.start_embedded()
    try:
        rows = run(parts, arguments.size)
    finally:
        ray.shutdown()
    report(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
