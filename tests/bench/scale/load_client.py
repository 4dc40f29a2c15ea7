"""A producer or a consumer of the same load on clusters of several sizes; it obeys lines on its standard input.

A program: load_client.py produce NAME_SERVERS TOPIC, or load_client.py consume NAME_SERVERS TOPIC. It prints "ready",
and then for each line

    send COUNT RATE    sends so many at so many a second; prints COUNT when all are acknowledged
    consumed           prints how many messages it has had so far
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # run as a program: the tests' folder is not installed

from raymq.client import Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage

#: What a producer's user may wait for company of his message.
LINGER_SECONDS: Final = 0.01
BATCH: Final = 32
_BODY: Final = b"x" * 100
_TIMEOUT: Final = 60.0


def produce(mq: Connection, topic: str) -> None:
    """Obey until standard input ends."""
    with Producer(mq, "load", timeout=_TIMEOUT, linger=LINGER_SECONDS) as producer:
        print("ready", flush=True)
        for line in sys.stdin:
            _, count, rate = line.split()
            send(producer, topic, int(count), float(rate))
            print(count, flush=True)


def send(producer: Producer, topic: str, count: int, rate: float) -> None:
    """So many, evenly."""
    waiting = []
    began = time.monotonic()
    while len(waiting) < count:
        due = min(count, int((time.monotonic() - began) * rate) + 1)
        waiting += [producer.send_async(Message(topic, _BODY)) for _ in range(due - len(waiting))]
        time.sleep(LINGER_SECONDS)
    for each in waiting:
        each.result(_TIMEOUT)


def consume(mq: Connection, topic: str) -> None:
    """Obey until standard input ends."""
    counts: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        counts.append(len(messages))  # from several threads
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "load", {topic: "*"}, listener, batch_size=BATCH):
        print("ready", flush=True)
        for _ in sys.stdin:
            print(sum(counts), flush=True)


def main() -> None:
    """Connect, and be what is asked for."""
    what, name_servers, topic = sys.argv[1:]
    with Connection(name_servers.split(";")) as mq:
        (produce if what == "produce" else consume)(mq, topic)


if __name__ == "__main__":
    main()
