"""Test push consumer controls: timeouts, rates, outages, pauses, traces and rebalance."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TraceEvent,
    TraceState,
)
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def test_call_beyond_consume_timeout_is_retried(mq: Connection, admin: Admin) -> None:
    release = threading.Event()
    deliveries: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        deliveries.append(messages[0].reconsume_times)
        if not messages[0].reconsume_times:
            release.wait(20)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, listener, consume_timeout=0.2):
        Producer(mq, "p").send(Message("t", b"slow"))
        poll_until(lambda: deliveries == [0, 1], 20)
        release.set()


def test_fetch_ahead_is_limited_to_free_room(mq: Connection, admin: Admin) -> None:
    """Fetch a partly consumed queue, where a fetch must not ask for a whole window."""
    release, called = threading.Semaphore(0), list[int]()
    queue = MessageQueue("t", "broker-a", 0)
    Producer(mq, "p").send_batch([Message("t", b"x")] * 4_000, queue=queue)

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        called.append(messages[0].queue_offset)
        release.acquire(timeout=60)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, listener, threads=1) as consumer:
        process = consumer._consuming._queues[queue]  # type: ignore[union-attr]
        for done in (10, 400, 700):
            for _ in range(done - len(called) + 1):
                release.release()
            poll_until(lambda done=done: len(called) > done, 20)  # type: ignore[misc]
            poll_until(lambda: process.waits_for_room, 20)
            assert 0 < process.next_offset - len(called) < 1_000 + 10
            assert process.in_flight <= 1_000
        for _ in range(4_000):
            release.release()
        poll_until(lambda: len(called) == 4_000, 30)


def test_prefetch_limits_messages_waiting_for_call(mq: Connection, admin: Admin) -> None:
    release, called = threading.Semaphore(0), list[int]()
    queue = MessageQueue("t", "broker-a", 0)
    Producer(mq, "p").send_batch([Message("t", b"x")] * 40, queue=queue)

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        called.append(messages[0].queue_offset)
        release.acquire(timeout=60)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, listener, threads=2, prefetch=3) as consumer:
        process = consumer._consuming._queues[queue]  # type: ignore[union-attr]
        for done in range(0, 40, 4):
            for _ in range(4):
                release.release()
            poll_until(lambda done=done: len(called) >= min(40, done + 6), 20)  # type: ignore[misc]
            assert process.ready <= 3
            assert process.next_offset <= len(called) + 3
    assert sorted(called) == list(range(40))


@pytest.mark.parametrize("consume_timeout", [0.3, 900.0])
def test_health_reports_hanging_calls(mq: Connection, admin: Admin, consume_timeout: float) -> None:
    """Include calls that were counted as failed, which still occupy their threads."""
    release, called = threading.Event(), list[MessageQueue]()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        called.append(messages[0].queue)
        release.wait(60)
        return ConsumeResult.SUCCESS

    queues = [MessageQueue("t", broker, 0) for broker in ("broker-a", "broker-b")]
    limits = {"consume_timeout": consume_timeout, "hang_after": 0.5}
    with PushConsumer(mq, "g", {"t": "*"}, listener, threads=2, **limits) as consumer:  # type: ignore[arg-type]
        for queue in queues:
            Producer(mq, "p").send(Message("t", b"x"), queue=queue)
        poll_until(lambda: len(called) == 2)
        assert consumer.health.running
        poll_until(lambda: not consumer.health.ok, 20)
        hanging = consumer.health.hanging
        assert sorted(call.queue for call in hanging) == queues
        assert all(call.seconds > 0.5 for call in hanging)
        poll_until(lambda: all(call.seconds > 2.0 for call in consumer.health.hanging), 20)
        assert not consumer.health.ok, "however long"
        release.set()
        poll_until(lambda: consumer.health.ok, 20)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocking_listener_delays_only_its_own_call(mq: Connection, admin: Admin, threads: int) -> None:
    release, blocked = threading.Event(), threading.Event()
    taken: list[bytes] = []
    running, most = [0], [0]
    lock = threading.Lock()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        if messages[0].body == b"blocks":
            blocked.set()
            assert release.wait(20)
        taken.append(messages[0].body)
        with lock:
            running[0] -= 1
        return ConsumeResult.SUCCESS

    producer = Producer(mq, "p")
    with PushConsumer(mq, "g", {"t": "*"}, listener, threads=threads):
        for n in range(50):  # one by one
            producer.send(Message("t", b"%d" % n))
            poll_until(lambda at=n + 1: len(taken) == at)  # type: ignore[misc]
        producer.send(Message("t", b"blocks"))
        assert blocked.wait(20)
        for _ in range(20):
            producer.send(Message("t", b"behind"))
        assert admin.topic_stats("t"), "the loop goes on"
        if threads > 1:
            poll_until(lambda: len(taken) == 70)
        release.set()
        poll_until(lambda: len(taken) == 71)
        for n in range(50):
            producer.send(Message("t", b"%d" % n))
        poll_until(lambda: len(taken) == 121)
    assert most[0] <= threads


def test_messages_above_rate_limit_stay_on_broker(mq: Connection, admin: Admin) -> None:
    taker = RecordingListener()
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(200)])
    with PushConsumer(mq, "g", {"t": "*"}, taker, rate_limit=20.0) as consumer:
        begun = time.monotonic()
        poll_until(lambda: len(taker.taken) >= 30, 20)
        seconds = time.monotonic() - begun
        assert len(taker.taken) <= 20 * seconds + 5
        assert consumer is not None
    remaining = sum(p.lag or 0 for q, p in admin.group_progress("g").items() if q.topic == "t")
    assert remaining >= 200 - 20 * (seconds + 2) - 5


def test_outage_pauses_consumption_instead_of_draining_topic(mq: Connection, admin: Admin) -> None:
    healthy = threading.Event()
    calls: Counter[bytes] = Counter()
    lock = threading.Lock()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        with lock:
            calls.update(message.body for message in messages)
        return ConsumeResult.SUCCESS if healthy.is_set() else ConsumeResult.RECONSUME_LATER

    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(300)])
    taker_settings = {"on_outage": "pause", "max_reconsume_times": 1, "threads": 2}
    with PushConsumer(mq, "g", {"t": "*"}, listener, **taker_settings):  # type: ignore[arg-type]
        poll_until(lambda: calls.total() >= 18, 20)
        began = time.monotonic()
        poll_until(lambda: time.monotonic() - began > 1.5, 5)
        assert calls.total() < 60, "the topic is being drained"
        healthy.set()
        poll_until(lambda: len(calls) == 300, 30)
        poll_until(lambda: all(p.lag == 0 for p in admin.group_progress("g").values()), 30)
    assert "%DLQ%g" not in admin.topics(system=True)


def test_pause_stops_and_resume_restarts_delivery(mq: Connection, admin: Admin) -> None:
    taker = RecordingListener()
    producer = Producer(mq, "p")
    with PushConsumer(mq, "g", {"t": "*"}, taker) as consumer:
        producer.send(Message("t", b"before"))
        poll_until(lambda: taker.taken, 10)
        consumer.pause()
        producer.send(Message("t", b"while"))
        poll_until(lambda: sum(p.lag or 0 for p in admin.group_progress("g").values()) == 1, 10)
        assert taker.bodies == [b"before"]
        consumer.resume()
        poll_until(lambda: len(taker.taken) == 2, 10)


def test_consumer_paused_before_start_makes_no_calls(mq: Connection, admin: Admin) -> None:
    """Cover a regression: calls began before the pause took effect."""
    taker = RecordingListener()
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"x")] * 50)
    consumer = PushConsumer(mq, "g", {"t": "*"}, taker)
    consumer.pause()
    with consumer:
        consuming = consumer._consuming
        assert consuming is not None
        poll_until(lambda: sum(process.ready for process in list(consuming._queues.values())) == 50, 10)
        assert not taker.taken
        consumer.resume()
        poll_until(lambda: len(taker.taken) == 50, 10)


def test_trace_reports_every_step(mq: Connection, admin: Admin) -> None:
    events: list[TraceEvent] = []
    taker = RecordingListener(lambda message: ConsumeResult.RECONSUME_LATER if message.body == b"bad" else None)
    with PushConsumer(mq, "g", {"t": "*"}, taker, max_reconsume_times=1, trace=events.append):
        Producer(mq, "p").send_batch([Message("t", b"good"), Message("t", b"bad")])
        poll_until(lambda: any(event.state is TraceState.DEAD_LETTER for event in events), 20)
    ready, flying = TraceState.READY, TraceState.IN_FLIGHT
    states = {body: [e.state for e in events if e.message.body == body] for body in (b"good", b"bad")}
    assert states[b"good"] == [ready, flying, TraceState.COMMIT]
    assert states[b"bad"] == [ready, flying, TraceState.RETRY, ready, flying, TraceState.DEAD_LETTER]


def test_failing_trace_hook_does_not_stop_consumption(mq: Connection, admin: Admin) -> None:
    def broken(_: TraceEvent) -> None:
        raise ValueError("no")

    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker, trace=broken):
        Producer(mq, "p").send(Message("t", b"x"))
        poll_until(lambda: taker.taken, 10)


@pytest.mark.parametrize("strategy", ["average", "sticky", "consistent-hash"])
def test_members_share_queues_with_every_strategy(mq: Connection, admin: Admin, strategy: str) -> None:
    admin.create_topic("many", queues=8)
    first, second = RecordingListener(), RecordingListener()
    with (
        PushConsumer(mq, "g", {"many": "*"}, first, strategy=strategy),
        PushConsumer(mq, "g", {"many": "*"}, second, strategy=strategy),
    ):
        producer = Producer(mq, "p")
        sent = 0

        def both_got_some() -> bool:
            nonlocal sent
            for _ in range(16):
                producer.send(Message("many", b"x"))
                sent += 1
            return bool(first.taken and second.taken)

        poll_until(both_got_some, 20)
        poll_until(lambda: len(first.taken) + len(second.taken) >= sent, 20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consume_timeout", 0),
        ("hang_after", 0),
        ("strategy", "random"),
        ("ordered_retry_interval", 0.001),
        ("ordered_retry_interval", 31),
        ("rate_limit", 0),
        ("on_outage", "panic"),
        ("park_failed_keys", True),
    ],
)
def test_invalid_settings_are_refused(mq: Connection, name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        PushConsumer(mq, "g", {"t": "*"}, RecordingListener(), **{name: value})  # type: ignore[arg-type]


def test_last_set_retry_limit_applies_to_group(mq: Connection, admin: Admin) -> None:
    deliveries: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        deliveries.append(messages[0].reconsume_times)
        return ConsumeResult.RECONSUME_LATER

    with PushConsumer(mq, "g", {"t": "*"}, listener, max_reconsume_times=3):
        pass
    with PushConsumer(mq, "g", {"t": "*"}, listener, max_reconsume_times=1):
        pass
    with PushConsumer(mq, "g", {"t": "*"}, listener):
        Producer(mq, "p").send(Message("t", b"bad"))
        poll_until(lambda: "%DLQ%g" in admin.topics(system=True), 20)
    assert deliveries == [0, 1]


@pytest.mark.parametrize("ordered", [False, True])
def test_skip_takes_effect_at_next_commit(mq: Connection, admin: Admin, ordered: bool) -> None:
    """Skip at once, not after the hundreds of messages that were fetched before."""
    queue = MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p")
    producer.send_batch([Message("t", b"%d" % number) for number in range(800)], queue=queue)
    taken: list[bytes] = []

    def slowly(messages: list[ReceivedMessage]) -> ConsumeResult:
        time.sleep(0.02)  # a slow listener
        taken.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, slowly, ordered=ordered, threads=1):
        poll_until(lambda: len(taken) >= 20, 20)
        admin.skip("g", "t")
        poll_until(lambda: admin.group_progress("g")[queue].lag == 0, 10)
        producer.send(Message("t", b"new"), queue=queue)
        poll_until(lambda: b"new" in taken, 10)
        assert len(taken) < 400


def test_shutdown_during_start_stops_started_tasks(mq: Connection, admin: Admin) -> None:
    calls: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        calls.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(mq, "racing", {"t": "*"}, listener)
    begin = consumer._begin
    shut_down = threading.Event()

    async def begin_while_it_is_shut_down(*given: Any) -> Any:
        consuming = await begin(*given)
        threading.Thread(target=lambda: (consumer.shutdown(0.1), shut_down.set())).start()
        await asyncio.to_thread(poll_until, lambda: consumer._closed)
        return consuming

    consumer._begin = begin_while_it_is_shut_down  # type: ignore[method-assign]
    consumer.start()
    assert consumer.wait(20)
    assert shut_down.wait(20)
    assert not consumer.health.running
    assert not consumer._last_consuming or not consumer._last_consuming.supervisor.works


def test_concurrent_starts_create_one_member(mq: Connection, services: Services, admin: Admin) -> None:
    del admin
    consumer = PushConsumer(mq, "twice", {"t": "*"}, lambda _: ConsumeResult.SUCCESS)
    threads = [threading.Thread(target=consumer.start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(services.brokers["broker-a"].groups.members("twice")) == 1
    consumer.shutdown(5.0)
    assert "twice" not in services.brokers["broker-a"].groups.consumer_groups()
