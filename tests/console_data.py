"""Make a shop's topics and groups for the console's tests and screenshots: some do well, some do not."""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator

import msgpack
import pyarrow as pa

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    DeadMessage,
    GroupNotFound,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from raymq.client.results import SendResult
from tests.polling import poll_until

TOPICS = {"orders": 4, "payments": 2, "shipments": 2, "clickstream": 4, "thumbnails": 1, "invoices": 1}
#: The body of the message that group billing cannot handle.
POISON = {"order": 4711, "customer": "Ada", "amount": "twelve", "currency": "EUR"}


def order(number: int, rng: random.Random) -> Message:
    """Return an order as JSON."""
    body = {
        "order": number,
        "customer": rng.choice(["Ada", "Grace", "Edsger", "Barbara", "Tony"]),
        "amount": round(rng.uniform(5, 250), 2),
        "currency": "EUR",
        "items": [{"sku": f"A-{rng.randrange(1000):04}", "count": rng.randrange(1, 4)} for _ in range(2)],
    }
    properties = {"content-type": "application/json", "source": "checkout"}
    return Message("orders", json.dumps(body).encode(), tags="paid", keys=[f"order-{number}"], properties=properties)


def payment(number: int) -> Message:
    """Return a payment as msgpack."""
    body = msgpack.packb({"order": number, "method": "card", "captured": True, "receipt": b"\x00\x01\x02"})
    properties = {"content-type": "application/msgpack"}
    return Message("payments", body, tags="card", keys=[f"order-{number}"], properties=properties)


def invoice(number: int) -> Message:
    """Return an invoice as an Arrow stream of one row."""
    table = pa.table({"order": [number], "total": [19.99], "lines": [["A-0001", "A-0002"]]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    properties = {"content-type": "application/vnd.apache.arrow.stream"}
    return Message("invoices", sink.getvalue().to_pybytes(), keys=[f"order-{number}"], properties=properties)


def bill(messages: list[ReceivedMessage]) -> ConsumeResult:
    """Raise an error for an order whose amount is no number."""
    for message in messages:
        float(json.loads(message.body)["amount"])
    return ConsumeResult.SUCCESS


def accept(_: list[ReceivedMessage]) -> ConsumeResult:
    """Handle everything."""
    return ConsumeResult.SUCCESS


class Shop:
    """The shop's programs: `trade` sends a round of messages."""

    def __init__(self, mq: Connection) -> None:
        self._mq = mq
        self._rng = random.Random(7)
        self._number = 4_000
        self.admin = Admin(mq)
        self.producer = Producer(mq, "checkout")
        for topic, queues in TOPICS.items():
            self.admin.create_topic(topic, queues=queues)

    def trade(self, orders: int) -> None:
        """Send orders and what belongs to them."""
        for _ in range(orders):
            self._number += 1
            self.producer.send(order(self._number, self._rng))
            self.producer.send(payment(self._number))
        self.producer.send(invoice(self._number))
        clicks = [
            Message("clickstream", f"GET /item/{self._rng.randrange(900)} 200".encode()) for _ in range(3 * orders)
        ]
        self.producer.send_batch(clicks)

    def pour_poison(self) -> SendResult:
        """Send the message that group billing refuses."""
        return self.producer.send(Message("orders", json.dumps(POISON).encode(), tags="paid", keys=["order-4711"]))

    @contextlib.contextmanager
    def billing(self, listener: Callable[[list[ReceivedMessage]], ConsumeResult] = bill) -> Iterator[PushConsumer]:
        """Run a member of group billing, which puts refused orders into its dead letters at the second failure."""
        with PushConsumer(self._mq, "billing", {"orders": "*"}, listener, max_reconsume_times=1) as consumer:
            yield consumer

    @contextlib.contextmanager
    def shipping(self) -> Iterator[PushConsumer]:
        """Run a member of group shipping, which handles everything."""
        with PushConsumer(self._mq, "shipping", {"orders": "*", "payments": "*"}, accept) as consumer:
            yield consumer

    def stall_analytics(self) -> None:
        """Let group analytics handle what is there, and end its only member."""
        with PushConsumer(self._mq, "analytics", {"clickstream": "*"}, accept, batch_size=32):
            poll_until(lambda: self.lag("analytics") == 0, 20, "analytics")

    def lag(self, group: str) -> float:
        """Return the lag of a group in the topics; infinite if a part of it is not known."""
        progress = self.admin.group_progress(group).items()
        lags = [each.lag for queue, each in progress if queue.topic in TOPICS]
        return sum(math.inf if lag is None else lag for lag in lags) if lags else math.inf

    def lend_thumbnails(self) -> SimpleConsumer:
        """Send pictures, and lend some of them to a group that does not acknowledge them yet."""
        self.producer.send_batch(
            [Message("thumbnails", bytes([0x89, 0x50, 0x4E, 0x47, 0, number])) for number in range(12)]
        )
        consumer = SimpleConsumer(self._mq, "thumbnailer", {"thumbnails": "*"})
        poll_until(lambda: consumer.receive(8, invisible_duration=600.0, await_duration=1.0), 20, "lent messages")
        return consumer

    def plan_reminders(self) -> None:
        """Send messages that are delivered later."""
        for minutes in (8, 25, 90, 60 * 24):
            body = json.dumps({"mail": "reminder", "in_minutes": minutes}).encode()
            message = Message("invoices", body, keys=[f"reminder-{minutes}"], deliver_at=time.time() + 60 * minutes)
            self.producer.send(message)

    def leave_transactions_open(self) -> None:
        """Begin transactions whose producer never decides."""
        for number in (1, 2):
            self.producer.begin(Message("payments", b'{"refund": %d}' % number, keys=[f"refund-{number}"]))

    def dead_letters(self, count: int) -> None:
        """Wait until group billing has so many dead letters."""
        poll_until(lambda: len(self._listed()) >= count, 30, "dead letters")

    def _listed(self) -> list[DeadMessage]:
        try:
            return list(self.admin.dlq_list("billing"))
        except GroupNotFound:
            return []
