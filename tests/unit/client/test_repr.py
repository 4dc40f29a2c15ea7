"""Test `repr` of connections, clients and messages: one line, without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    InvalidInput,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    Sql,
)
from raymq.client.message import ReceivedMessage
from raymq.cluster.bootstrap import Cluster


@pytest.fixture
def mq() -> Iterator[Connection]:
    connection = Connection(["h:1", "h:2"])
    yield connection
    connection.close()


def test_connection_repr_has_its_name_servers(mq: Connection) -> None:
    assert repr(mq) == "Connection(name_servers='h:1;h:2', open)"
    cluster = Cluster(["h:1"], namespace="raymq")
    cluster.close()
    assert repr(cluster) == "Cluster(namespace='raymq', name_servers='h:1', closed)"


def test_client_repr_has_group_cluster_and_state(mq: Connection) -> None:
    producer = Producer(mq, "checkout")
    assert repr(producer) == "Producer(group='checkout', state='open', name_servers='h:1;h:2')"
    producer.close()
    assert "state='closed'" in repr(producer)
    assert repr(Admin(mq)) == "Admin(state='open', name_servers='h:1;h:2')"

    async def made_on_a_loop() -> list[Any]:  # there constructors send no request
        return [PullConsumer(mq, "g"), SimpleConsumer(mq, "g", {"t": Sql("price > 3")})]

    pull, simple = asyncio.run(made_on_a_loop())
    assert repr(pull) == "PullConsumer(group='g', state='open', name_servers='h:1;h:2')"
    assert "group='g', subscriptions={'t': 'price > 3'}" in repr(simple)


def test_push_consumer_repr_has_its_subscriptions(mq: Connection) -> None:
    consumer = PushConsumer(mq, "billing", {"orders": "paid"}, lambda _: ConsumeResult.SUCCESS)
    assert repr(consumer) == (
        "PushConsumer(group='billing', subscriptions={'orders': 'paid'}, state='not started', name_servers='h:1;h:2')"
    )
    consumer.shutdown()
    assert "state='shut down'" in repr(consumer)


def test_repr_works_for_a_client_that_failed_to_initialise(mq: Connection) -> None:
    made = Producer.__new__(Producer)
    with pytest.raises(InvalidInput):
        Producer.__init__(made, mq, "a b")
    assert repr(made).startswith("Producer(")
    assert repr(PushConsumer.__new__(PushConsumer)).startswith("PushConsumer(")


def test_message_repr_is_one_line_without_property_values() -> None:
    assert repr(Message("orders", b"1 espresso")) == "Message(topic='orders', body=b'1 espresso')"
    message = Message("orders", b"x" * 10_000, tags="paid", keys=["order-42"], properties={"password": "tiger"})
    shown = repr(message)
    assert "body=b'xxxx" in shown
    assert "(10000 bytes)" in shown
    assert "tags='paid', keys=('order-42',), properties=['password']" in shown
    assert "tiger" not in shown
    assert len(shown) < 300


def received_message(body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=body,
        tags="a\nb",
        keys=["k"],
        properties={"token": "tiger"},
        system_properties={},
        message_id="00",
        unique_key="U1",
        queue=MessageQueue("orders", "broker-a", 3),
        queue_offset=7,
        physical_offset=0,
        born_timestamp=0.0,
        store_timestamp=0.0,
        reconsume_times=2,
    )


def test_received_message_repr_is_one_line_without_secrets() -> None:
    shown = repr(received_message(b"y" * 1_000))
    assert shown.startswith("ReceivedMessage(topic='orders', queue='broker-a/3', queue_offset=7, unique_key='U1'")
    assert "reconsume_times=2" in shown
    assert "(1000 bytes)" in shown
    assert "tiger" not in shown
    assert "\n" not in shown
