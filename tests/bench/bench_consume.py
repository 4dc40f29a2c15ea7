"""Draining a backlog with each consumer, beside a bare socket that moves the same bytes in the same run.

Run by `make bench-consume`. Prints a table, with --json a JSON value. The broker runs in a process of its own. Compare
ratios, not times: the machine is shared. "CPU" is what one message costs this process and the broker's.
"""

from __future__ import annotations

import argparse
import sys
import threading
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

from tests.bench.bench_cluster import latency_us
from tests.bench.bench_produce import Bench, Row, broker, report, socket_rate

SIZES = (100, 1024)
MESSAGES = {100: 200_000, 1024: 100_000}
QUEUES = 4
#: Of one poll or fetch_table; 8 MiB are the most that an answer holds.
ASKED = 10_000
END_TO_END = 2_000
TIMEOUT = 60.0


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


def run() -> list[Row]:
    """All rows: name, value, unit, and p99 or the CPU of client and broker in us per message."""
    bench = Bench()
    for size in SIZES:
        rate = round(socket_rate(size))
        bench.rows.append({"name": f"baseline: socket, 1 MiB writes, {size} B", "value": rate, "unit": "messages/s"})
    with broker() as (name_server, far), Connection([name_server]) as mq:
        for size in SIZES:
            _drain(bench, mq, far, size)
        _end_to_end(bench, mq)
    return bench.rows


def _drain(bench: Bench, mq: Connection, far: psutil.Process, size: int) -> None:
    topic, count = f"t{size}", MESSAGES[size]
    Admin(mq).create_topic(topic, queues=QUEUES)
    with Producer(mq, "bench", timeout=TIMEOUT) as producer:
        table = pa.table({"body": pa.array([bytes(size)] * (count // QUEUES), pa.binary())})
        for queue in PullConsumer(mq, "bench").queues(topic):
            producer.send_table(topic, table, "body", queue=queue)

    def pull(method: str) -> None:
        with PullConsumer(mq, "bench") as consumer:
            left = count
            for queue in consumer.queues(topic):
                consumer.seek(queue, 0)
                while got := len(getattr(consumer, method)(queue, ASKED, 0.0)):
                    left -= got
            assert left == 0

    def push(batch_size: int, ordered: bool) -> None:
        countdown = Countdown(count)
        settings = {"batch_size": batch_size, "ordered": ordered}
        with PushConsumer(mq, f"g-{size}-{batch_size}-{ordered}", {topic: "*"}, countdown, **settings):  # type: ignore[arg-type]
            assert countdown.done.wait(TIMEOUT)

    bench.rate(f"fetch_table, {size} B", count, lambda: pull("fetch_table"), far)
    bench.rate(f"poll, {size} B", count, lambda: pull("poll"), far)
    bench.rate(f"PushConsumer, batches of 32, {size} B", count, lambda: push(32, False), far)
    bench.rate(f"PushConsumer, one at a time, {size} B", count, lambda: push(1, False), far)
    bench.rate(f"PushConsumer, ordered, batches of 32, {size} B", count, lambda: push(32, True), far)


def _end_to_end(bench: Bench, mq: Connection) -> None:
    """From the call of send to the call of the listener, one message at a time."""
    Admin(mq).create_topic("latency", queues=1)
    arrived = threading.Semaphore(0)

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        arrived.release()
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "latency", {"latency": "*"}, listener), Producer(mq, "bench") as producer:

        def call() -> None:
            producer.send(Message("latency", bytes(1024)))
            assert arrived.acquire(timeout=TIMEOUT)

        p50, p99 = latency_us(call, END_TO_END)
    bench.rows.append({"name": "end to end, 1 KiB", "value": round(p50), "unit": "us p50", "p99": round(p99)})


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    as_json = parser.parse_args().json
    report(run(), as_json=as_json)


if __name__ == "__main__":
    main()
