"""Test ordered consumption: one call per queue, retries in place, queues that change members."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
)
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


class Recorder:
    """Record ordered calls, and whether a queue was in two calls at once."""

    def __init__(self, fails: object = lambda message: False, seconds: float = 0.0) -> None:
        self.fails = fails
        self.seconds = seconds
        self.calls: list[tuple[bytes, int]] = []
        self.taken: dict[str, list[bytes]] = defaultdict(list)
        self.overlaps = 0
        self._busy: set[object] = set()
        self._lock = threading.Lock()

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        queue = messages[0].queue
        with self._lock:
            self.overlaps += queue in self._busy
            self._busy.add(queue)
        time.sleep(self.seconds)
        with self._lock:
            self._busy.discard(queue)
            self.calls += [(message.body, message.reconsume_times) for message in messages]
            if any(self.fails(message) for message in messages):  # type: ignore[operator]
                return ConsumeResult.RECONSUME_LATER
            for message in messages:
                self.taken[message.keys[0]].append(message.body)
        return ConsumeResult.SUCCESS

    @property
    def count(self) -> int:
        return sum(map(len, self.taken.values()))


def send(mq: Connection, keys: int, each: int) -> dict[str, list[bytes]]:
    sent: dict[str, list[bytes]] = defaultdict(list)
    with Producer(mq, "p") as producer:
        for number in range(each):
            for key in range(keys):
                body = b"%d-%d" % (key, number)
                producer.send(Message("t", body, keys=f"k{key}"), sharding_key=f"k{key}")
                sent[f"k{key}"].append(body)
    return sent


def test_key_order_survives_member_changes(mq: Connection, admin: Admin) -> None:
    recorder = Recorder(seconds=0.002)
    settings = {"ordered": True, "batch_size": 3}
    with PushConsumer(mq, "g", {"t": "*"}, recorder, **settings):  # type: ignore[arg-type]
        sent = send(mq, keys=8, each=10)
        second = PushConsumer(mq, "g", {"t": "*"}, recorder, **settings)  # type: ignore[arg-type]
        second.start()
        for key, bodies in send(mq, keys=8, each=10).items():
            sent[key] += bodies
        second.shutdown()
        for key, bodies in send(mq, keys=8, each=5).items():
            sent[key] += bodies
        poll_until(lambda: recorder.count >= 200, 30)
    assert recorder.overlaps == 0, "two calls had messages of one queue"
    assert recorder.taken == sent


def test_failed_message_blocks_queue_and_is_retried_in_place(mq: Connection, admin: Admin) -> None:
    recorder = Recorder(lambda message: message.body == b"0-1" and message.reconsume_times < 3)
    with PushConsumer(mq, "g", {"t": "*"}, recorder, ordered=True, ordered_retry_interval=0.05):
        send(mq, keys=1, each=4)
        poll_until(lambda: recorder.count >= 4, 20)
    assert recorder.calls == [(b"0-0", 0), *((b"0-1", times) for times in range(4)), (b"0-2", 0), (b"0-3", 0)]


def test_retry_limit_moves_message_to_dead_letters(mq: Connection, admin: Admin) -> None:
    recorder = Recorder(lambda message: message.body == b"0-1")
    consumer = PushConsumer(
        mq, "g", {"t": "*"}, recorder, ordered=True, ordered_retry_interval=0.02, max_reconsume_times=2
    )
    with consumer:
        send(mq, keys=1, each=3)
        poll_until(lambda: recorder.count >= 2, 20)
        poll_until(lambda: "%DLQ%g" in admin.topics(system=True), 20)
    assert recorder.calls == [(b"0-0", 0), (b"0-1", 0), (b"0-1", 1), (b"0-1", 2), (b"0-2", 0)]


def test_parked_key_does_not_block_other_keys(mq: Connection, admin: Admin) -> None:
    healed = threading.Event()
    recorder = Recorder(lambda message: message.keys == ["k0"] and not healed.is_set())
    consumer = PushConsumer(
        mq, "g", {"t": "*"}, recorder, ordered=True, ordered_retry_interval=0.05, park_failed_keys=True
    )
    with consumer:
        sent = send(mq, keys=6, each=5)
        poll_until(lambda: recorder.count >= 25, 20)
        assert not recorder.taken["k0"]
        healed.set()
        poll_until(lambda: recorder.count >= 30, 20)
    assert recorder.taken == sent


def test_negative_retry_moves_message_to_dead_letters(mq: Connection, admin: Admin) -> None:
    calls: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult | Retry:
        calls.append(messages[0].body)
        return Retry(-1) if messages[0].body == b"0-0" else ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, listener, ordered=True):
        send(mq, keys=1, each=2)
        poll_until(lambda: len(calls) >= 2, 20)
        poll_until(lambda: "%DLQ%g" in admin.topics(system=True), 20)
    assert calls == [b"0-0", b"0-1"]


def test_offset_reset_waits_for_running_call(mq: Connection, services: Services, admin: Admin) -> None:
    entered, go_on = threading.Event(), threading.Event()
    calls: list[int] = []
    running = overlaps = 0

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        nonlocal running, overlaps
        overlaps += running
        running += 1
        calls.append(messages[0].queue_offset)
        if len(calls) == 3:
            entered.set()
            go_on.wait(20)
        running -= 1
        return ConsumeResult.SUCCESS

    queue = MessageQueue("t", "broker-a", 0)
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(5)], queue=queue)
    broker = services.brokers["broker-a"]

    async def reset() -> None:
        broker.core.reset_offset("g", "t", 0, 1)

    def noticed() -> bool:
        return not broker.store.consumer_offsets.is_reset_pending("g", "t", 0)

    with PushConsumer(mq, "g", {"t": "*"}, listener, ordered=True):
        assert entered.wait(10)
        services.loop.run(reset())
        poll_until(noticed, 20, "the consumer fetches from the reset offset")
        assert calls == [0, 1, 2], "a call began beside the one that runs"
        go_on.set()
        poll_until(lambda: len(calls) == 7, 10)
        poll_until(lambda: admin.group_progress("g")[queue].committed_offset == 5, 10)
    assert calls == [0, 1, 2, 1, 2, 3, 4]
    assert overlaps == 0
