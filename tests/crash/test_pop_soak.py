"""Run consumers that pop, fail, renew and acknowledge while their broker is killed repeatedly."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path

import pytest

from raymq.client import Admin, Connection, Message, Producer, RayMQError, ReceivedMessage, SimpleConsumer
from tests.crash.test_pop_kill import Brokers
from tests.polling import poll_until

pytestmark = [pytest.mark.crash, pytest.mark.soak]

MESSAGES = 3_000
KILLS = 15


class History:
    """What several consumers saw; no message may be delivered after a confirmed acknowledgement."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: dict[bytes, float] = {}
        self.violations: list[str] = []

    def received(self, message: ReceivedMessage, asked_at: float) -> None:
        with self.lock:
            done_at = self.done.get(message.body)
            if done_at is not None and done_at < asked_at:
                self.violations.append(f"{message.body!r} came again {asked_at - done_at:.3f} s after it was done")

    def acknowledged(self, message: ReceivedMessage) -> None:
        with self.lock:
            if message.body in self.done:
                self.violations.append(f"{message.body!r} was acknowledged twice")
            self.done[message.body] = time.monotonic()


def consume(mq: Connection, history: History, number: int, ended: threading.Event) -> None:
    chance = random.Random(number)
    consumer = poll_until(lambda: _try_join(mq), 60, "the consumer joins its group")
    while not ended.is_set():
        try:
            asked_at = time.monotonic()
            for message in consumer.receive(chance.choice([1, 10, 32]), 2.0, 0.5):
                history.received(message, asked_at)
                luck = chance.random()
                if luck < 0.1:
                    continue
                if luck < 0.2 and not consumer.change_invisible_duration(message, chance.choice([0.1, 5.0])):
                    continue
                if consumer.ack(message):
                    history.acknowledged(message)
        except RayMQError:
            ended.wait(0.05)


def _try_join(mq: Connection) -> SimpleConsumer | None:
    with contextlib.suppress(RayMQError):
        return SimpleConsumer(mq, "g", {"t": "*"}, max_reconsume_times=1_000)
    return None


@pytest.mark.timeout(600)
def test_acknowledged_messages_are_not_redelivered_over_kills(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    history = History()
    with Connection([brokers.start()]) as mq:
        Admin(mq).create_topic("t", queues=4)
        producer = Producer(mq, "p")
        for first in range(0, MESSAGES, 100):
            producer.send_batch([Message("t", b"%d" % n) for n in range(first, first + 100)])
        ended = threading.Event()
        threads = [threading.Thread(target=consume, args=(mq, history, n, ended), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        chance = random.Random(7)
        try:
            for _ in range(KILLS):
                ended.wait(chance.uniform(0.2, 2.0))  # the lifetime of this broker
                brokers.kill()
                brokers.start()
            poll_until(lambda: _lag(mq) == 0, 120, "all messages are done")
            ended.set()
            for thread in threads:
                thread.join(30)
        finally:
            brokers.kill()
    assert history.violations == []
    # An acknowledgement whose answer a kill dropped counts, but no consumer recorded it.
    assert MESSAGES - KILLS <= len(history.done) <= MESSAGES


def _lag(mq: Connection) -> int:
    return sum(found.lag or 0 for found in Admin(mq).group_progress("g").values())
