"""Runs on the cluster's head as a job of Ray: sends messages and consumes them, and looks whether all that was ever
acknowledged is there.

    python exchange.py MESSAGES PAUSE ACKNOWLEDGED

PAUSE is in seconds, behind each message. ACKNOWLEDGED is a file with the bodies that were acknowledged, those of former
runs included. It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from pathlib import Path

from raymq import cluster
from raymq.client import (
    Admin,
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    RayMQError,
)

TOPIC = "trial"
#: In all, a message may need so long: a group may have to elect a master.
SEND_SECONDS = 30.0
CONSUME_SECONDS = 60.0


def main(count: int, pause: float, acknowledged: Path) -> None:
    run = uuid.uuid4().hex[:8]
    seen: dict[str, float] = {}
    all_seen = threading.Event()

    def listener(messages: list[Message]) -> ConsumeResult:
        for message in messages:
            body = message.body.decode()
            if body.startswith(run):
                seen.setdefault(body, time.time())
        if len(seen) >= count:
            all_seen.set()
        return ConsumeResult.SUCCESS

    with cluster.connect() as mq, Admin(mq) as admin:
        admin.create_topic(TOPIC, queues=2)
        consumer = PushConsumer(
            mq, group="trial", subscriptions={TOPIC: "*"}, listener=listener, consume_from=ConsumeFrom.FIRST
        )
        with consumer, Producer(mq, group="trial") as producer, acknowledged.open("a") as file:
            consumer.start()
            slowest = 0.0
            brokers: set[str] = set()
            for number in range(count):
                body = f"{run}-{number}"
                began = time.monotonic()
                brokers.add(send(producer, body, began + SEND_SECONDS))
                slowest = max(slowest, time.monotonic() - began)
                print(body, file=file, flush=True)
                time.sleep(pause)
            for queue in queues_of_others(mq, brokers):  # a producer leaves one out for a while that has failed
                body = f"to-{queue.broker}-{run}"
                brokers.add(send(producer, body, time.monotonic() + SEND_SECONDS, queue))
                print(body, file=file, flush=True)
            consumed = all_seen.wait(CONSUME_SECONDS)
        wanted = set(acknowledged.read_text().split())
        stored = everything(mq, wanted)
    told = {
        "consumed": len(seen),
        "all_consumed": consumed,
        "brokers": sorted(brokers),
        "slowest_send": round(slowest, 3),
        "first": min(seen.values(), default=None),
        "acknowledged": len(wanted),
        "lost": sorted(wanted - stored),
    }
    print("EXCHANGED " + json.dumps(told), flush=True)


def queues_of_others(mq: cluster.Cluster, brokers: set[str]) -> list[MessageQueue]:
    """A queue of each broker of the topic that is not among these."""
    with PullConsumer(mq, group="trial-reader") as pull:
        of_brokers = {queue.broker: queue for queue in pull.queues(TOPIC)}
    return [queue for broker, queue in of_brokers.items() if broker not in brokers]


def send(producer: Producer, body: str, until: float, queue: MessageQueue | None = None) -> str:
    """Send until it is acknowledged; the broker that did."""
    while True:
        try:
            return producer.send(Message(TOPIC, body.encode()), queue=queue).queue.broker
        except RayMQError:
            if time.monotonic() > until:
                raise


def everything(mq: cluster.Cluster, wanted: set[str]) -> set[str]:
    """The bodies of all messages that are stored, as soon as the wanted ones are among them."""
    found: set[str] = set()
    until = time.monotonic() + CONSUME_SECONDS
    with PullConsumer(mq, group="trial-reader") as pull:
        queues = pull.queues(TOPIC)
        for queue in queues:
            pull.seek(queue, "earliest")
        while not wanted <= found and time.monotonic() < until:
            for queue in queues:
                try:
                    found |= {each.body.decode() for each in pull.poll(queue, max_messages=1000, timeout=0.5)}
                except RayMQError:
                    continue
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
