"""A start of a push consumer that is cancelled or interrupted: nothing of it is left, and it may be started again."""

from __future__ import annotations

import asyncio

import pytest

from raymq.client import Admin, Connection, Message, Producer, PushConsumer
from tests.integration.taker import Taker
from tests.integration.test_interrupted_sends import interrupted_at
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def works(mq: Connection) -> set[str]:
    """What runs for consumers on the connection's loop."""

    async def now() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks()} & {"assignment", "commits", "heartbeat"}

    return mq.run(now())


def check_started_again(mq: Connection, consumer: PushConsumer, taker: Taker) -> None:
    """Nothing runs; started again, it consumes."""
    poll_until(lambda: not works(mq), 20, "nothing runs")
    assert not consumer.health.running
    taken = len(taker.taken)
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"x"))
    with consumer:
        poll_until(lambda: len(taker.taken) > taken, 20, "it consumes")


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 20, 100])
def test_a_start_that_is_cancelled_leaves_no_consumer_that_runs(mq: Connection, admin: Admin, steps: int) -> None:
    """It ran on, with all that its group had to consume, until its connection ended."""
    del admin
    taker = Taker()
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


def test_a_start_that_is_cancelled_as_it_ends_leaves_no_consumer_that_runs(mq: Connection, admin: Admin) -> None:
    """Its thread had joined by then, and the task that waited had not heard of it."""
    del admin
    taker = Taker()
    consumer = PushConsumer(mq, "g", {"t": "*"}, taker)

    async def start_and_cancel() -> None:
        starting = asyncio.ensure_future(consumer.astart())
        await asyncio.sleep(0)
        poll_until(lambda: consumer.health.running, 10)  # on the loop of the task, which hears of nothing meanwhile
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(start_and_cancel())
    check_started_again(mq, consumer, taker)


def test_a_start_that_is_interrupted_anywhere_leaves_no_consumer_that_runs(mq: Connection, admin: Admin) -> None:
    del admin
    taker = Taker()
    consumer = PushConsumer(mq, "g", {"t": "*"}, taker)
    step = 0
    while interrupted_at(step, ("push/push_consumer.py",), consumer.start, "_join"):
        if consumer.health.running:  # it had started, and is there to be shut down
            break
        poll_until(lambda: not works(mq), 20, "nothing runs")
        step += 1
    assert step > 5
    assert consumer.health.running
    consumer.shutdown()
    poll_until(lambda: not works(mq), 20, "nothing runs")
