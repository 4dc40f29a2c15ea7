"""Test requests that name many items: limits, refusals and the time that they block the event loop.

Blocking is measured as CPU time of the loop's thread and compared with a piece of work of known size.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.request_limits import MAX_BATCH, MAX_FETCHED, MAX_LOCKED, MAX_REDRIVEN
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.send_headers import SendBatchMessage, SendMessage
from raymq.client import Admin, Connection, ConsumeResult, Message, MessageQueue, Producer, PushConsumer
from tests.broker_process import BrokerProcess
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until

ONE = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + struct.pack(">H", 0)
TOPICS = 9_000


class WatchedBroker:
    """Run a broker in its own process and record how long its event loop blocks."""

    def __init__(self, directory: Path) -> None:
        self._stops = directory / "stops"
        os.environ["LOOP_WATCH"] = str(self._stops)
        try:
            self.process = BrokerProcess("broker-a", directory)
        finally:
            del os.environ["LOOP_WATCH"]
        with Connection([self.process.name_server]) as mq:
            admin = Admin(mq)
            admin.create_topic("t", queues=4)
            self.process.tell(f"topics {TOPICS} 2")
            poll_until(lambda: len(admin.topics()) > TOPICS, 60)
            (broker,) = admin.cluster_info().brokers
            assert broker.address is not None
            self.address = broker.address

    def ask(self, command: Command) -> Command:
        with ForeignClient(self.address) as client:
            return client.ask(command, 60.0)

    def longest_stop_ms(self, command: Command) -> float:
        """Return the CPU time of the loop's longest block around a request."""
        before = self._stops.stat().st_size
        self.ask(command)
        self.ask(Command(RequestCode.STATUS))  # by this answer the loop has recorded its block
        with self._stops.open() as file:
            file.seek(before)
            return max((json.loads(line)["cpu_ms"] for line in file), default=0.0)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedBroker]:
    made = WatchedBroker(tmp_path_factory.mktemp("many"))
    yield made
    made.process.stop()


def batch(count: int, code: type[SendMessage] = SendBatchMessage) -> Command:
    header = code("p", "t", "TBW102", 4, 0, 0, 1, 0, batch=True)
    return header.command(ONE * count)


def fetch(queues: list[Any]) -> Command:
    fields = {"session": "s", "queues": queues, "max_messages": 10, "max_bytes": 1 << 20, "wait_ms": 0}
    return Command(RequestCode.FETCH, fields, serialization=Serialization.MSGPACK)


def lock(count: int) -> Command:
    queues = [{"topic": f"new{n % TOPICS}", "brokerName": "broker-a", "queueId": n // TOPICS} for n in range(count)]
    return Command(
        RequestCode.LOCK_BATCH_MQ,
        body=json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": queues}).encode(),
    )


def redrive(count: int) -> Command:
    fields = {"group": "many", "offsets": list(range(count))}
    return Command(RequestCode.REDRIVE_DEAD_LETTERS, fields, serialization=Serialization.MSGPACK)


def groups(count: int) -> Command:
    heartbeat = {"clientID": "c", "consumerDataSet": [{"groupName": f"many-{n}"} for n in range(count)]}
    return Command(RequestCode.HEART_BEAT, body=json.dumps(heartbeat).encode())


LARGEST = {
    "batch": batch(MAX_BATCH),
    "too large a batch": batch(180_000),
    "fetch": fetch([[f"new{n}", 0, 0, None] for n in range(MAX_FETCHED)]),
    "locks": lock(MAX_LOCKED),
    "too many locks": lock(35_000),
    "redrive": redrive(MAX_REDRIVEN),
    "progress of all groups": Command(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    "settings of all topics": Command(RequestCode.GET_ALL_TOPIC_CONFIG),
    "settings of all groups": Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    "expression": fetch([["t", 0, 0, f"n in ({','.join(['1'] * 4_000)})"]]),
    "another expression": fetch([["t", 0, 0, " or ".join(f"n = {n}" for n in range(700))]]),
}


#: The value of `known_work_ms` on an idle machine. Some read JSON in half of that, but parse expressions no faster.
KNOWN_WORK_MS = 20.0


def known_work_ms() -> float:
    """Return the CPU time of fixed work: `KNOWN_WORK_MS`, or more on slow machines."""
    text = json.dumps([{"topic": f"topic {n}", "queue": n} for n in range(25_000)])
    began = time.thread_time()
    json.loads(text)
    return 1_000 * (time.thread_time() - began)


@pytest.mark.parametrize("name", list(LARGEST))
def test_large_request_does_not_block_event_loop(watched: WatchedBroker, name: str) -> None:
    """Take the best of three: garbage collection, sweeps and page faults also block."""
    assert watched.ask(groups(2_000)).code == ResponseCode.SUCCESS
    unit = max(known_work_ms() for _ in range(3))
    assert min(watched.longest_stop_ms(LARGEST[name]) for _ in range(3)) < 3 * max(unit, KNOWN_WORK_MS)


@pytest.mark.parametrize(
    "command",
    [batch(MAX_BATCH + 1), fetch([["t", n, 0, None] for n in range(MAX_FETCHED + 1)]), redrive(MAX_REDRIVEN + 1)],
    ids=["batch", "fetch", "redrive"],
)
def test_oversized_request_is_refused_with_limit(watched: WatchedBroker, command: Command) -> None:
    answer = watched.ask(command)
    assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)
    assert "at most" in (answer.remark or "")


@pytest.mark.parametrize("serialization", [Serialization.JSON, Serialization.ROCKETMQ])
def test_answer_to_largest_batch_is_readable(watched: WatchedBroker, serialization: Serialization) -> None:
    command = batch(MAX_BATCH)
    command.serialization = serialization
    answer = watched.ask(command)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert len(answer.fields["msgId"].split(",")) == MAX_BATCH


def test_maximum_number_of_queue_locks_is_granted(watched: WatchedBroker) -> None:
    answer = watched.ask(lock(MAX_LOCKED))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert len(json.loads(bytes(answer.body))["lockOKMQSet"]) == MAX_LOCKED


def test_push_consumer_reads_more_queues_than_fetch_limit(watched: WatchedBroker) -> None:
    topics = ["wide-a", "wide-b"]
    half = MAX_FETCHED // 2 + 50
    ends = [MessageQueue(topic, "broker-a", queue_id) for topic in topics for queue_id in (0, half - 1)]
    seen: Counter[MessageQueue] = Counter()

    def listener(messages: list[Any]) -> ConsumeResult:
        seen.update(message.queue for message in messages)
        return ConsumeResult.SUCCESS

    with Connection([watched.process.name_server]) as mq, Producer(mq, "p") as producer:
        for topic in topics:
            Admin(mq).create_topic(topic, queues=half)
        for queue in ends:
            producer.send(Message(queue.topic, b"before"), queue=queue)
        with PushConsumer(mq, "of-many", dict.fromkeys(topics, "*"), listener):
            poll_until(lambda: len(seen) == len(ends), 60)
            for queue in ends:
                producer.send(Message(queue.topic, b"after"), queue=queue)
            poll_until(lambda: all(seen[queue] == 2 for queue in ends), 60)
