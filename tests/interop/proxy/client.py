"""One case of the official Python gRPC client; prints "passed". Run as `client.py ENDPOINT CASE`."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

CONFIGURATION = ClientConfiguration(sys.argv[1], Credentials())


def message(topic: str, body: str, **options: Any) -> Message:
    made = Message()
    made.topic, made.body, made.keys = topic, body.encode(), body
    for name, value in options.items():
        setattr(made, name, value)
    return made


class Check(TransactionChecker):
    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def check(self, message: Message) -> TransactionResolution:
        self.asked.append(message.body)
        return TransactionResolution.COMMIT


class Listener(MessageListener):
    """Note what was received, and let the first tries of one body fail."""

    def __init__(self, failing: str = "", failures: int = 0) -> None:
        self.received: list[tuple[bytes, int]] = []
        self.failing = failing.encode()
        self.failures = failures

    def consume(self, message: Message) -> ConsumeResult:
        self.received.append((message.body, message.delivery_attempt))
        if message.body == self.failing and len(self.attempts()) <= self.failures:
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS

    def attempts(self) -> list[int]:
        """Return the numbers of the tries of the failing body."""
        return [attempt for body, attempt in self.received if body == self.failing]


@contextmanager
def producer(topic: str, checker: Check | None = None) -> Iterator[Producer]:
    made = Producer(CONFIGURATION, (topic,), checker=checker)
    made.startup()
    try:
        yield made
    finally:
        made.shutdown()


@contextmanager
def simple_consumer(topic: str) -> Iterator[SimpleConsumer]:
    made = SimpleConsumer(CONFIGURATION, f"g-{uuid.uuid4().hex}", {topic: FilterExpression()}, await_duration=5)
    made.startup()
    try:
        yield made
    finally:
        made.shutdown()


def receive(consumer: SimpleConsumer, count: int, seconds: float, invisible: int = 15) -> list[Message]:
    """Return the first messages, not acknowledged; a request may fail while the proxy learns routes."""
    found: list[Message] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until and len(found) < count:
        try:
            found += consumer.receive(8, invisible) or []
        except Exception as error:  # noqa: BLE001 - the proxy may not have the consumer's settings yet
            print("receive:", error)
            time.sleep(1.0)
    return found


def received(topic: str, count: int, seconds: float = 30.0) -> list[bytes]:
    with simple_consumer(topic) as consumer:
        found = receive(consumer, count, seconds, invisible=60)
        for each in found:
            consumer.ack(each)
        return [each.body for each in found]


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "in time"
        time.sleep(0.1)


def normal() -> None:
    with producer("normal") as sender:
        receipt = sender.send(message("normal", "first"))
        assert receipt.message_id
    assert received("normal", 1) == [b"first"]


@contextmanager
def push_consumer(topic: str, group: str, listener: Listener) -> Iterator[PushConsumer]:
    made = PushConsumer(CONFIGURATION, group, listener, {topic: FilterExpression()})
    made.startup()
    try:
        yield made
    finally:
        made.shutdown()


def fifo() -> None:
    """The third message fails twice: the ones behind it wait. The broker has a FIFO group of this name."""
    bodies = [f"f{number}" for number in range(20)]
    with producer("fifo") as sender:
        for body in bodies:
            sender.send(message("fifo", body, message_group="one"))
    listener = Listener("f2", failures=2)

    def own() -> list[str]:
        return [body.decode() for body, _ in listener.received if body.decode() in bodies]

    with push_consumer("fifo", "fifo-python", listener):
        until(lambda: len(own()) >= len(bodies) + 2, 90.0)
    assert own() == ["f0", "f1", "f2", "f2", *bodies[2:]], own()
    assert len(listener.attempts()) == 3, "the client tries by itself and does not count"


def delay() -> None:
    with producer("delay") as sender:
        due = int(time.time()) + 6
        sender.send(message("delay", "later", delivery_timestamp=due))
    found = received("delay", 1)
    assert b"later" in found
    assert time.time() >= due


def recall() -> None:
    with producer("delay") as sender:
        receipt = sender.send(message("delay", "recalled", delivery_timestamp=int(time.time()) + 8))
        sender.recall_message("delay", receipt.recall_handle)
    assert b"recalled" not in received("delay", 100, 30.0)


def transaction() -> None:
    with producer("transaction", Check()) as sender:
        for body, commits in (("committed", True), ("rolled back", False)):
            begun = sender.begin_transaction()
            sender.send(message("transaction", body), begun)
            if commits:
                begun.commit()
            else:
                begun.rollback()
    found = received("transaction", 100, 40.0)
    assert b"committed" in found, found
    assert b"rolled back" not in found


def check() -> None:
    checker = Check()
    with producer("transaction", checker) as sender:
        sender.send(message("transaction", "asked for"), sender.begin_transaction())
        until(lambda: b"asked for" in checker.asked, 120.0)
        assert b"asked for" in received("transaction", 100, 40.0)


def type_() -> None:
    with producer("normal") as sender:
        try:
            sender.send(message("normal", "x", message_group="g"))
        except Exception as error:
            if "not match" in str(error):
                return
            raise
    raise AssertionError("a FIFO message was sent to a topic of NORMAL ones")


def invisible() -> None:
    with producer("retried") as sender:
        sender.send(message("retried", "hidden"))
    with simple_consumer("retried") as consumer:
        [first] = receive(consumer, 1, 30.0, invisible=10)
        consumer.change_invisible_duration(first, 15)
        began = time.monotonic()
        [again] = receive(consumer, 1, 60.0)
        assert time.monotonic() - began > 8.0, "it came too early"
        assert (again.body, again.delivery_attempt) == (b"hidden", 2)
        consumer.ack(again)


def retry() -> None:
    with producer("retried") as sender:
        sender.send(message("retried", "fails once"))
    listener = Listener("fails once", failures=1)
    with push_consumer("retried", f"g-{uuid.uuid4().hex}", listener):
        until(lambda: 2 in listener.attempts(), 120.0)


def dead() -> None:
    """A message that always fails; the broker's group of this name allows two attempts."""
    with producer("retried") as sender:
        sender.send(message("retried", "python always fails"))
    listener = Listener("python always fails", failures=100)
    with push_consumer("retried", "dead-python", listener):
        until(lambda: 2 in listener.attempts(), 120.0)
        time.sleep(45.0)
    assert listener.attempts() == [1, 2], listener.attempts()


CASES = {
    "normal": normal,
    "fifo": fifo,
    "delay": delay,
    "recall": recall,
    "transaction": transaction,
    "check": check,
    "type": type_,
    "invisible": invisible,
    "retry": retry,
    "dead": dead,
}

CASES[sys.argv[2]]()
print("passed")
