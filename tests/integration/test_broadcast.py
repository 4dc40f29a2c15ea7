"""Test broadcasting: each member gets every message from its start position until it leaves."""

from __future__ import annotations

import pytest

from raymq.client import Admin, Connection, ConsumeFrom, Message, MessageModel, MessageQueue, Producer, PushConsumer
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def test_broadcast_members_join_and_leave(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")

    def member(taker: RecordingListener, start: ConsumeFrom) -> PushConsumer:
        model = MessageModel.BROADCASTING
        return PushConsumer(mq, "g", {"t": "*"}, taker, model=model, consume_from=start)

    def send(*bodies: bytes) -> None:
        producer.send_batch([Message("t", body) for body in bodies])

    stays, leaves, late, from_now = RecordingListener(), RecordingListener(), RecordingListener(), RecordingListener()
    leaving = member(leaves, ConsumeFrom.FIRST)
    with member(stays, ConsumeFrom.FIRST):
        leaving.start()
        send(b"1", b"2")
        poll_until(lambda: len(stays.taken) == len(leaves.taken) == 2, 10)
        leaving.shutdown()
        with member(late, ConsumeFrom.FIRST), member(from_now, ConsumeFrom.LAST):
            send(b"3")
            poll_until(lambda: from_now.bodies == [b"3"] and len(late.taken) == 3, 10)
        send(b"4")
        poll_until(lambda: len(stays.taken) == 4, 10)
    assert stays.bodies == [b"1", b"2", b"3", b"4"]
    assert leaves.bodies == [b"1", b"2"]
    assert late.bodies == [b"1", b"2", b"3"]
    again = RecordingListener()
    with member(again, ConsumeFrom.FIRST):  # the progress was kept in the earlier processes only
        poll_until(lambda: len(again.taken) == 4, 10)
    assert all(found.committed_offset is None for found in admin.group_progress("g").values())


@pytest.mark.parametrize("start", [ConsumeFrom.FIRST, ConsumeFrom.LAST])
def test_broadcast_continues_after_broker_restart(
    mq: Connection, services: Services, admin: Admin, start: ConsumeFrom
) -> None:
    taker = RecordingListener()
    queue = MessageQueue("t", "broker-b", 0)
    producer = Producer(mq, "p")
    with PushConsumer(mq, "g", {"t": "*"}, taker, model=MessageModel.BROADCASTING, consume_from=start) as consumer:
        producer.send_batch([Message("t", b"old %d" % number) for number in range(8)], queue=queue)
        poll_until(lambda: len(taker.taken) == 8, 10)
        assert consumer._consuming is not None
        queues = consumer._consuming._queues
        services.stop_broker("broker-b")
        poll_until(lambda: queue not in queues, 30, "the broker has left the routes")
        services.start_broker("broker-b")
        with Connection([services.name_server.address]) as other:
            new = [Message("t", b"new %d" % number) for number in range(10)]
            poll_until(lambda: len(Producer(other, "q").send_batch(new, queue=queue)) == 10, 10)
        poll_until(lambda: len(taker.taken) >= 18, 30)
    assert taker.bodies == sorted([b"old %d" % number for number in range(8)] + [b"new %d" % n for n in range(10)])
