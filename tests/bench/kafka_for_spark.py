"""A Kafka node for Spark's own source and sink: the baseline of `bench_spark.py`.

A program, run with an interpreter that has confluent_kafka:
    kafka_for_spark.py DIRECTORY_OF_JARS PARTITIONS TOPIC ...
It prints the node's address when the topics are there; then, for each line "TOPIC SECONDS PER_SECOND BYTES" on its
standard input, sends at this pace, one by one, the time of each in its first 8 bytes, and prints how many it were.
"""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.bench.foreign_servers import kafka_node


def pace(address: str, topic: str, seconds: float, per_second: int, size: int) -> int:
    """As `bench_spark.Pace` sends, with the same time to gather."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 2, "acks": "all"})
    filler, sent, due = bytes(size - 8), 0, time.monotonic()
    end = due + seconds
    while due < end:
        producer.produce(topic, struct.pack(">d", time.time()) + filler)
        producer.poll(0)
        sent += 1
        due += 1 / per_second
        time.sleep(max(0.0, due - time.monotonic()))
    producer.flush(30)
    return sent


def main() -> None:
    jars, partitions, *topics = sys.argv[1:]
    with kafka_node(jars, dict.fromkeys(topics, int(partitions))) as address:
        print(address, flush=True)
        for line in sys.stdin:
            topic, seconds, per_second, size = line.split()
            print(pace(address, topic, float(seconds), int(per_second), int(size)), flush=True)


if __name__ == "__main__":
    main()
