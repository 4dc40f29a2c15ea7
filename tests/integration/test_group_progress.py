"""Test group progress: queues without lag, with lag and without offset, and a reset by time."""

from __future__ import annotations

import threading
import time

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    GroupNotFound,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def test_group_progress_reports_lag_per_queue(mq: Connection, admin: Admin) -> None:
    queues = PullConsumer(mq, "reader").queues("t")
    done, never, behind = queues[:3]
    with Producer(mq, "p") as producer, PullConsumer(mq, "g") as consumer:
        for queue in (done, behind, never):
            producer.send_batch([Message("t", b"x") for _ in range(5)], queue=queue)
        consumer.commit(done, 5)
        consumer.commit(behind, 2)
    progress = admin.group_progress("g")
    assert (progress[done].committed_offset, progress[done].lag) == (5, 0)
    assert (progress[behind].committed_offset, progress[behind].lag) == (2, 3)
    assert progress[never].max_offset == 5
    unknown = progress[never]
    assert (unknown.committed_offset, unknown.lag, unknown.in_flight, unknown.ready) == (None, None, None, None)
    assert unknown.oldest_unfinished_age is None
    assert progress[done].oldest_unfinished_age == 0.0
    assert 0.0 <= (progress[behind].oldest_unfinished_age or 0.0) < 60.0


def test_progress_of_pop_group_tells_in_flight_and_ready(mq: Connection, admin: Admin) -> None:
    """The lag of a pop group counts from the first message that is not acknowledged."""
    queue = MessageQueue("t", "broker-a", 0)

    def left() -> tuple[int | None, int | None]:
        progress = admin.group_progress("g")[queue]
        return progress.in_flight, progress.ready

    with Producer(mq, "p") as producer, SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        producer.send_batch([Message("t", b"x") for _ in range(100)], queue=queue)
        received = []
        while len(received) < 10:
            received += consumer.receive(10 - len(received), invisible_duration=60.0)
        assert left() == (10, 90)
        assert consumer.ack(received[1:])
        progress = admin.group_progress("g")[queue]
        assert (progress.lag, progress.in_flight, progress.ready) == (100, 1, 90)
        assert 0.0 <= (progress.oldest_unfinished_age or 0.0) < 60.0
        assert consumer.change_invisible_duration(received[0], 0.001)
        poll_until(lambda: left() == (0, 91))
        while left() != (0, 0):
            for message in consumer.receive(32):
                consumer.ack(message)
        assert admin.group_progress("g")[queue].oldest_unfinished_age == 0.0


def test_reads_of_pull_consumers_are_not_known_to_be_in_flight(mq: Connection, admin: Admin) -> None:
    """A pull consumer is no member, so the broker does not know how far it has read."""
    queue = MessageQueue("t", "broker-a", 0)

    def left() -> tuple[int | None, int | None]:
        progress = admin.group_progress("g")[queue]
        return progress.in_flight, progress.ready

    with Producer(mq, "p") as producer, PullConsumer(mq, "g") as pull:
        producer.send_batch([Message("t", b"x") for _ in range(20)], queue=queue)
        last = producer.send(Message("t", b"last"), queue=queue).message_id
        pull.commit(queue, 5)
        assert pull.poll(queue, 8)
        assert left() == (None, 16)
        assert [each.state for each in admin.trace_message(last).consumed] == ["unknown"]
        pull.commit(queue, 21)
        assert [each.state for each in admin.trace_message(last).consumed] == ["finished"]
        assert left() == (0, 0)


def test_progress_of_push_group_tells_in_flight_and_ready(mq: Connection, admin: Admin) -> None:
    queue, may_end = MessageQueue("t", "broker-a", 0), threading.Event()

    def listen(_: list[ReceivedMessage]) -> ConsumeResult:
        may_end.wait(30)
        return ConsumeResult.SUCCESS

    with Producer(mq, "p") as producer, PullConsumer(mq, "g") as pull:
        pull.commit(queue, 0)
        producer.send_batch([Message("t", b"x") for _ in range(40)], queue=queue)
        before = admin.group_progress("g")[queue]
        assert (before.in_flight, before.ready) == (None, 40)
    try:
        with PushConsumer(mq, "g", {"t": "*"}, listen, prefetch=10):
            poll_until(lambda: admin.group_progress("g")[queue].in_flight)
            poll_until(lambda: (now := admin.group_progress("g")[queue]).in_flight + now.ready == 40)
            stuck = admin.group_progress("g")[queue]
            assert stuck.owner
            poll_until(lambda: admin.group_progress("g")[queue].oldest_unfinished_age > 0.5)
            may_end.set()
            poll_until(lambda: admin.group_progress("g")[queue].lag == 0)
            done = admin.group_progress("g")[queue]
            assert (done.in_flight, done.ready, done.oldest_unfinished_age) == (0, 0, 0.0)
    finally:
        may_end.set()


@pytest.mark.parametrize("ordered", [False, True])
def test_reset_offset_by_time_moves_running_group(mq: Connection, admin: Admin, ordered: bool) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    taker = RecordingListener()

    def committed() -> int | None:
        return admin.group_progress("g")[queue].committed_offset

    with Producer(mq, "p") as producer, PushConsumer(mq, "g", {"t": "*"}, taker, ordered=ordered):
        producer.send(Message("t", b"old"), queue=queue)
        middle = time.time() + 0.01
        poll_until(lambda: time.time() > middle, 1)
        producer.send(Message("t", b"new"), queue=queue)
        poll_until(lambda: committed() == 2)
        admin.reset_offset_by_time("g", "t", middle)
        poll_until(lambda: taker.bodies == [b"new", b"new", b"old"])
        poll_until(lambda: committed() == 2)
        admin.reset_offset_by_time("g", "t", 0)
        poll_until(lambda: len(taker.taken) == 5)
        poll_until(lambda: committed() == 2)
    admin.reset_offset_by_time("g", "t", time.time() + 3_600)
    assert committed() == 2
    with pytest.raises(GroupNotFound):
        admin.reset_offset_by_time("nobody", "t", 0)
