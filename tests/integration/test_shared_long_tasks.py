"""64 members on 4 queues with tasks of 10 ms to 2 s: the work is shared evenly, and nothing is done twice."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.soak]

MEMBERS, TASKS = 64, 2_000
LEAST_SHARE = 0.95


def ideal_seconds(tasks: list[float]) -> float:
    """What the members take that have each next task at once."""
    free_at = [0.0] * MEMBERS
    for seconds in tasks:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def test_many_members_share_long_tasks(mq: Connection, admin: Admin) -> None:
    admin.create_topic("tasks", queues=2)  # on each of two brokers
    rng = random.Random(7)
    tasks = [0.01 * 200 ** rng.random() for _ in range(TASKS)]
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("tasks", b"%r" % seconds) for seconds in tasks[: TASKS // 2]])
        producer.send_batch([Message("tasks", b"%r" % seconds) for seconds in tasks[TASKS // 2 :]])
    done: Counter[tuple[object, int]] = Counter()
    lock = threading.Lock()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        (message,) = messages
        time.sleep(float(message.body))
        with lock:
            done[message.queue, message.queue_offset] += 1
        return ConsumeResult.SUCCESS

    with ExitStack() as members:
        consumers = [
            PushConsumer(mq, "g", {"tasks": "*"}, listener, mode="pop", threads=1, lease=5.0) for _ in range(MEMBERS)
        ]
        for consumer in consumers:
            consumer.pause()
            members.enter_context(consumer)
        begun, spent = time.monotonic(), time.process_time()
        for consumer in consumers:
            consumer.resume()
        poll_until(lambda: len(done) == TASKS, 300)
        took = time.monotonic() - begun
    assert set(done.values()) == {1}
    share = ideal_seconds(tasks) / took
    print(f"{took:.1f} s, {share:.1%} of the ideal, {time.process_time() - spent:.1f} s of processor time")
    assert share >= LEAST_SHARE
