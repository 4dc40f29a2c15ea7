"""Kafka with a broker on each of some hosts, and a client of it (librdkafka, acks=all), for `kafka_sides`.

A program, run with an interpreter that has confluent_kafka:
    kafka_sends.py DIRECTORY_OF_JARS PLACES
PLACES is JSON: of each broker its host's address, and what a command begins with that is to run there. It prints the
ids of the brokers' processes, as JSON, when there are the topics "one" and "all"; then for each line on its standard
input

    single COUNT SIZE TOPIC     the microseconds of so many sends, one at a time, as JSON
    many COUNT SIZE TOPIC       the seconds of so many in batches (linger 5 ms, batches of up to 1 MiB)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.foreign_servers import kafka_cluster

PARTITIONS = 4
SECONDS = 60


def failed(error: object, _: object) -> None:
    """Told of each message that is not acknowledged, and of no other."""
    raise RuntimeError(f"Kafka did not take a message: {error}")


def producer(address: str, **settings: Any) -> Any:
    from confluent_kafka import Producer

    usual = {"bootstrap.servers": address, "acks": "all", "queue.buffering.max.messages": 1_000_000}
    return Producer({**usual, "delivery.report.only.error": True, "on_delivery": failed, **settings})


def singles(sends: Any, count: int, size: int, topic: str) -> list[float]:
    body, times = bytes(size), []
    for _ in range(count):
        began = time.perf_counter()
        sends.produce(topic, body)
        left = sends.flush(SECONDS)
        times.append((time.perf_counter() - began) * 1e6)
        assert not left, "a message is not acknowledged"
    return times


def many(sends: Any, count: int, size: int, topic: str) -> float:
    body = bytes(size)
    began = time.perf_counter()
    for _ in range(count):
        sends.produce(topic, body)
    left = sends.flush(SECONDS)
    assert not left, f"{left} messages are not acknowledged"
    return time.perf_counter() - began


def main() -> None:
    jars, places = sys.argv[1], json.loads(sys.argv[2])
    with kafka_cluster(jars, places, PARTITIONS) as (address, nodes):
        one_by_one = producer(address, **{"linger.ms": 0})
        gathering = producer(address, **{"linger.ms": 5, "batch.size": 1 << 20})
        print(json.dumps(nodes), flush=True)
        for line in sys.stdin:
            way, count, size, topic = line.split()
            if way == "single":
                print(json.dumps(singles(one_by_one, int(count), int(size), topic)), flush=True)
            else:
                print(many(gathering, int(count), int(size), topic), flush=True)


if __name__ == "__main__":
    main()
