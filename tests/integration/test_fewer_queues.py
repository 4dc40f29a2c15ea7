"""Test that sends without a chosen queue succeed after their topic got fewer queues."""

from __future__ import annotations

from typing import Any

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.errors import QueueNotFound
from tests.integration.conftest import Services


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("way", [{}, {"idempotent": True}, {"linger": 0.001}], ids=str)
@pytest.mark.parametrize("options", [{}, {"sharding_key": "k"}], ids=str)
def test_sends_use_remaining_queues(
    services: Services, mq: Connection, admin: Admin, recreated: bool, way: dict[str, Any], options: dict[str, Any]
) -> None:
    """Such sends raised QueueNotFound, which is not retriable, until the route expired after 30 s."""
    del admin
    with Connection([services.name_server.address]) as other, Producer(mq, "p", **way) as producer:
        admin = Admin(other)
        admin.create_topic("u", queues=4)
        producer.send_async(Message("u", b"before"), **options).result(10)
        if recreated:
            admin.delete_topic("u")
            admin.create_topic("u", queues=1)
        else:
            admin.update_topic("u", write_queues=1)
        sent = [producer.send_async(Message("u", b"%d" % number), **options).result(10) for number in range(12)]
        sent += producer.send_batch([Message("u", b"1"), Message("u", b"2")], **options)
        assert {result.queue.queue_id for result in sent} == {0}
        with pytest.raises(QueueNotFound):
            producer.send(Message("u", b"there"), queue=MessageQueue("u", "broker-a", 3))
