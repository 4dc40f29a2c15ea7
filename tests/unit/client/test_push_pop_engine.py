"""Test how many messages a push consumer in pop mode asks for, without a broker."""

from __future__ import annotations

import asyncio

from raymq.actors.wire.headers.pop_headers import ReceiptHandle
from raymq.client.connection import Connection
from raymq.client.members.tag_filter import TagFilter
from raymq.client.push.consumer_settings import ConsumerSettings
from raymq.client.push.listener import ConsumeResult, ListenerRunner
from raymq.client.push.push_pop_engine import PushPopEngine
from raymq.client.receipt import Receipt
from raymq.storage.clock import boottime
from tests.received_messages import message


def test_redelivered_message_leaves_room_for_others() -> None:
    """The engine asks for more although the message of a running call was delivered again."""

    async def lose_a_lease() -> None:
        settings = ConsumerSettings("g", {"t": TagFilter.parse("*")}, threads=2, prefetch=1, mode="pop")
        with Connection(["127.0.0.1:1"]) as mq:
            engine = PushPopEngine(mq, settings, ListenerRunner(lambda _: ConsumeResult.SUCCESS), lambda _: None)
            receipt = Receipt(ReceiptHandle(0, 1, 1, 0, "0", "b", 0, 0), False)
            engine._leases.add(message(0, receipt=receipt), boottime() + 3_600)
            assert engine._wanted() == 1, "one for the other thread"
            assert engine._leases.next_call() is not None
            engine._leases.add(message(0, receipt=receipt), boottime() + 3_600)
            assert engine._wanted() == 1

    asyncio.run(lose_a_lease())
