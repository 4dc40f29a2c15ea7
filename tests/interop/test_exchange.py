"""Exchange messages between Java and Python: bodies, keys, tags, properties, ids and times arrive as sent."""

from __future__ import annotations

import base64
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from raymq.client import Admin, Message, Producer, PullConsumer, ReceivedMessage
from raymq.cluster import Cluster

EXCHANGE = Path(__file__).resolve().parent / "exchange" / "Exchange.java"
COUNT = 30

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Line:
    """The Java program's output for one message."""

    unique_key: str
    message_id: str
    broker: str
    queue_id: int
    queue_offset: int
    born_ms: int
    tags: str
    keys: list[str]
    properties: dict[str, str]
    body: bytes

    @classmethod
    def read(cls, line: str) -> Line:
        unique, identity, broker, queue_id, offset, born, *coded = line.split("\t")
        tags, keys, properties, body = (base64.b64decode(each) for each in coded)
        pairs = [pair.split("\x01") for pair in properties.decode().split("\x02") if pair]
        return cls(
            unique,
            identity,
            broker,
            int(queue_id),
            int(offset),
            int(born),
            tags.decode(),
            keys.decode().split(),
            dict(pairs),
            body,
        )


def run_java(suite: Path, mode: str, mq: Cluster, topic: str) -> dict[bytes, Line]:
    """Run the program; return its messages by body."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", "target/lib/*", str(EXCHANGE), mode]
    ran = subprocess.run(
        [*command, ";".join(mq.name_servers), topic, str(COUNT)],
        cwd=suite,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [Line.read(line) for line in ran.stdout.splitlines() if line.count("\t") == 9]
    assert len(lines) == COUNT, ran.stdout + ran.stderr
    return {line.body: line for line in lines}


def consume(mq: Cluster, topic: str) -> list[ReceivedMessage]:
    received = []
    with PullConsumer(mq, group="exchange_python") as consumer:
        for queue in consumer.queues(topic):
            consumer.seek(queue, "earliest")
            low, high = consumer.offsets(queue)
            while consumer.position(queue) < high:
                received += consumer.poll(queue, max_messages=100, timeout=5.0)
            assert low == 0
    return received


@pytest.mark.long
def test_python_consumes_messages_of_java(mq: Cluster, java_suite: Path) -> None:
    Admin(mq).create_topic("from_java", queues=2)
    before = time.time()
    sent = run_java(java_suite, "produce", mq, "from_java")
    received = consume(mq, "from_java")
    assert sorted(message.body for message in received) == sorted(sent)
    for message in received:
        line = sent[message.body]
        assert (message.unique_key, message.message_id) == (line.unique_key, line.message_id)
        assert (message.queue.broker, message.queue.queue_id) == (line.broker, line.queue_id)
        assert message.queue_offset == line.queue_offset
        assert (message.tags, message.keys) == (line.tags, line.keys)
        assert message.properties == {"number": line.properties["number"], "text": "Grüße ☃"}
        assert before - 1 <= message.born_timestamp <= message.store_timestamp + 1 <= time.time() + 1


@pytest.mark.long
def test_java_consumes_messages_of_python(mq: Cluster, java_suite: Path) -> None:
    Admin(mq).create_topic("from_python", queues=2)
    sent = {}
    with Producer(mq, group="exchange_python") as producer:
        for number in range(COUNT):
            body = f"body {number} äöü ☃".encode() * (1 if number % 3 else 500)
            properties = {"number": str(number), "text": "Grüße ☃"}
            message = Message("from_python", body, tags="ödd", keys=[f"key-{number}", "shared"], properties=properties)
            sent[body] = (message, producer.send(message))
    received = run_java(java_suite, "consume", mq, "from_python")
    assert received.keys() == sent.keys()
    for body, line in received.items():
        message, result = sent[body]
        assert (line.unique_key, line.message_id) == (result.unique_key, result.message_id)
        assert (line.broker, line.queue_id) == (result.queue.broker, result.queue.queue_id)
        assert line.queue_offset == result.queue_offset
        assert (line.tags, line.keys) == (message.tags, list(message.keys))
        assert {name: line.properties[name] for name in ("number", "text")} == dict(message.properties)
        assert abs(line.born_ms / 1000 - time.time()) < 300
