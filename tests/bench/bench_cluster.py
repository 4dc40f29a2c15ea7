"""Sending and reading through a real cluster, beside an empty Ray call and a bare asyncio echo in the same run.

Run by `make bench`. Prints a table, with --json a JSON value. Compare ratios, not times: the machine is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable

import ray
from rich.table import Table

from raymq import cluster
from raymq.client import Admin, Message, Producer, PullConsumer
from raymq.cluster import ray_runtime
from raymq.cluster.output import console

SINGLES = 2_000
BATCH_MESSAGES = 50_000


def latency_us(call: Callable[[], object], count: int) -> tuple[float, float]:
    """(p50, p99) of `call` in microseconds, after a warm-up."""
    for _ in range(count // 10):
        call()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e6)
    ordered = sorted(times)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.99)]


def echo_call() -> Callable[[], object]:
    """A blocking 1 KiB round trip into an asyncio server on another loop of this process."""
    import socket

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1024):
            writer.write(data)

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(serve, "127.0.0.1", 0), loop).result()
    client = socket.create_connection(server.sockets[0].getsockname())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    payload = b"x" * 1024

    def call() -> None:
        client.sendall(payload)
        received = 0
        while received < len(payload):
            received += len(client.recv(len(payload)))

    return call


@ray.remote(num_cpus=0)
class Empty:
    """An actor that does nothing."""

    def call(self) -> None:
        return None


def run() -> list[dict[str, object]]:
    """All rows: name, value, unit."""
    rows: list[dict[str, object]] = []

    def latency(name: str, call: Callable[[], object], count: int = SINGLES) -> None:
        p50, p99 = latency_us(call, count)
        rows.append({"name": name, "value": round(p50), "unit": f"us (p99 {p99:.0f})"})

    actor = Empty.remote()
    ray.get(actor.call.remote())
    latency("baseline: empty Ray actor call", lambda: ray.get(actor.call.remote()), SINGLES // 4)
    latency("baseline: bare asyncio echo, 1 KiB", echo_call())
    with (
        tempfile.TemporaryDirectory() as root,
        cluster.start(brokers=1, root=root, namespace="bench") as mq,
        Producer(mq, "bench", timeout=30.0) as producer,
        PullConsumer(mq, "bench") as pull,
    ):
        Admin(mq).create_topic("single", queues=1)
        body = b"x" * 1024
        latency("send, 1 KiB, one at a time", lambda: producer.send(Message("single", body)))
        for size in (100, 1024):
            topic = f"batch-{size}"
            Admin(mq).create_topic(topic, queues=1)
            messages = [Message(topic, b"x" * size) for _ in range(BATCH_MESSAGES)]
            began = time.perf_counter()
            producer.send_batch(messages)
            rate = BATCH_MESSAGES / (time.perf_counter() - began)
            rows.append({"name": f"send_batch, {size} B", "value": round(rate), "unit": "messages/s"})
            queue = pull.queues(topic)[0]
            began = time.perf_counter()
            read = 0
            while read < BATCH_MESSAGES:
                read += pull.fetch_table(queue, BATCH_MESSAGES).num_rows
            rate = read / (time.perf_counter() - began)
            rows.append({"name": f"fetch_table, {size} B", "value": round(rate), "unit": "messages/s"})
    return rows


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    as_json = parser.parse_args().json
    ray_runtime.start_embedded()
    try:
        rows = run()
    finally:
        ray.shutdown()
    if as_json:
        print(json.dumps(rows))
        return
    table = Table("what", "value", "unit")
    for row in rows:
        table.add_row(str(row["name"]), f"{row['value']:,}", str(row["unit"]))
    console().print(table)


if __name__ == "__main__":
    main()
