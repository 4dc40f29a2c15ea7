"""Test group progress: queues without lag, with lag and without offset, and a reset by time."""

from __future__ import annotations

import time

import pytest

from raymq.client import Admin, Connection, GroupNotFound, Message, MessageQueue, Producer, PullConsumer, PushConsumer
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
    assert (progress[never].committed_offset, progress[never].lag) == (None, None)


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
