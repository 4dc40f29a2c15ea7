"""Test that a cancelled or interrupted start of a push consumer leaves no task and can be repeated."""

from __future__ import annotations

import asyncio

import pytest

from raymq.client import Admin, Connection, Message, Producer, PushConsumer
from tests.integration.recording_listener import RecordingListener
from tests.integration.test_interrupted_sends import interrupt_at
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def running_tasks(mq: Connection) -> set[str]:
    """Return the consumer tasks on the connection's loop."""

    async def now() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks()} & {"assignment", "commits", "heartbeat"}

    return mq.run(now())


def check_started_again(mq: Connection, consumer: PushConsumer, taker: RecordingListener) -> None:
    """Check that no task runs and that a restarted consumer consumes."""
    poll_until(lambda: not running_tasks(mq), 20, "nothing runs")
    assert not consumer.health.running
    taken = len(taker.taken)
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"x"))
    with consumer:
        poll_until(lambda: len(taker.taken) > taken, 20, "it consumes")


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 20, 100])
def test_cancelled_start_leaves_no_running_consumer(mq: Connection, admin: Admin, steps: int) -> None:
    """Cover a regression: the consumer continued to consume until its connection ended."""
    del admin
    taker = RecordingListener()
    consumer = PushConsumer(mq, "g", {"t": "*"}, taker)

    async def start_and_cancel() -> None:
        starting = asyncio.ensure_future(consumer.astart())
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(start_and_cancel())
    check_started_again(mq, consumer, taker)


def test_start_cancelled_at_its_end_leaves_no_consumer(mq: Connection, admin: Admin) -> None:
    """Cancel when the group was joined and the waiting task was not yet resumed."""
    del admin
    taker = RecordingListener()
    consumer = PushConsumer(mq, "g", {"t": "*"}, taker)

    async def start_and_cancel() -> None:
        starting = asyncio.ensure_future(consumer.astart())
        await asyncio.sleep(0)
        poll_until(lambda: consumer.health.running, 10)  # blocks the task's loop, so that the task is not resumed
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(start_and_cancel())
    check_started_again(mq, consumer, taker)


def test_interrupted_start_leaves_no_running_consumer(mq: Connection, admin: Admin) -> None:
    del admin
    taker = RecordingListener()
    consumer = PushConsumer(mq, "g", {"t": "*"}, taker)
    step = 0
    while interrupt_at(step, ("push/push_consumer.py",), consumer.start, "_join"):
        if consumer.health.running:  # the start was complete
            break
        poll_until(lambda: not running_tasks(mq), 20, "nothing runs")
        step += 1
    assert step > 5
    assert consumer.health.running
    consumer.shutdown()
    poll_until(lambda: not running_tasks(mq), 20, "nothing runs")
