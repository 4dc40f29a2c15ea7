"""Push consumers under control: time-outs, rates, outages, pauses, the trace, sharing out."""

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
from tests.integration.taker import Taker
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def test_a_call_that_runs_too_long_has_failed(mq: Connection, admin: Admin) -> None:
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


def test_no_more_is_fetched_ahead_than_there_is_room_for(mq: Connection, admin: Admin) -> None:
    """Of a queue of which some is done: what is asked for then is not a whole window again."""
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


def test_prefetch_bounds_what_waits_for_its_call(mq: Connection, admin: Admin) -> None:
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
def test_a_consumer_whose_calls_all_hang_says_so(mq: Connection, admin: Admin, consume_timeout: float) -> None:
    """Also of calls that were counted as failed: they keep their threads."""
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
def test_a_listener_that_was_quick_and_blocks_holds_up_no_more_than_its_call(
    mq: Connection, admin: Admin, threads: int
) -> None:
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


def test_what_is_above_the_rate_stays_on_the_broker(mq: Connection, admin: Admin) -> None:
    taker = Taker()
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(200)])
    with PushConsumer(mq, "g", {"t": "*"}, taker, rate_limit=20.0) as consumer:
        begun = time.monotonic()
        poll_until(lambda: len(taker.taken) >= 30, 20)
        seconds = time.monotonic() - begun
        assert len(taker.taken) <= 20 * seconds + 5
        assert consumer is not None
    owed = sum(p.lag or 0 for q, p in admin.group_progress("g").items() if q.topic == "t")
    assert owed >= 200 - 20 * (seconds + 2) - 5


def test_an_outage_pauses_instead_of_draining_the_topic(mq: Connection, admin: Admin) -> None:
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


def test_pause_and_resume(mq: Connection, admin: Admin) -> None:
    taker = Taker()
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


def test_a_consumer_that_is_paused_before_it_starts_calls_nothing(mq: Connection, admin: Admin) -> None:
    """It began calls before it heard of the pause."""
    taker = Taker()
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


def test_the_trace_tells_every_step(mq: Connection, admin: Admin) -> None:
    events: list[TraceEvent] = []
    taker = Taker(lambda message: ConsumeResult.RECONSUME_LATER if message.body == b"bad" else None)
    with PushConsumer(mq, "g", {"t": "*"}, taker, max_reconsume_times=1, trace=events.append):
        Producer(mq, "p").send_batch([Message("t", b"good"), Message("t", b"bad")])
        poll_until(lambda: any(event.state is TraceState.DEAD_LETTER for event in events), 20)
    ready, flying = TraceState.READY, TraceState.IN_FLIGHT
    told = {body: [e.state for e in events if e.message.body == body] for body in (b"good", b"bad")}
    assert told[b"good"] == [ready, flying, TraceState.COMMIT]
    assert told[b"bad"] == [ready, flying, TraceState.RETRY, ready, flying, TraceState.DEAD_LETTER]


def test_a_trace_that_fails_stops_nothing(mq: Connection, admin: Admin) -> None:
    def broken(_: TraceEvent) -> None:
        raise ValueError("no")

    taker = Taker()
    with PushConsumer(mq, "g", {"t": "*"}, taker, trace=broken):
        Producer(mq, "p").send(Message("t", b"x"))
        poll_until(lambda: taker.taken, 10)


@pytest.mark.parametrize("strategy", ["average", "sticky", "consistent-hash"])
def test_members_share_by_every_strategy(mq: Connection, admin: Admin, strategy: str) -> None:
    admin.create_topic("many", queues=8)
    first, second = Taker(), Taker()
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
def test_settings_are_checked(mq: Connection, name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        PushConsumer(mq, "g", {"t": "*"}, Taker(), **{name: value})  # type: ignore[arg-type]


def test_the_limit_of_retries_that_was_set_last_is_the_groups(mq: Connection, admin: Admin) -> None:
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
def test_a_skip_of_a_running_group_takes_effect_at_its_next_commit(mq: Connection, admin: Admin, ordered: bool) -> None:
    """And not when the hundreds of messages that were fetched before it are consumed."""
    queue = MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p")
    producer.send_batch([Message("t", b"%d" % number) for number in range(800)], queue=queue)
    taken: list[bytes] = []

    def slowly(messages: list[ReceivedMessage]) -> ConsumeResult:
        time.sleep(0.02)  # a listener that takes a human time
        taken.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, slowly, ordered=ordered, threads=1):
        poll_until(lambda: len(taken) >= 20, 20)
        admin.skip("g", "t")
        poll_until(lambda: admin.group_progress("g")[queue].lag == 0, 10)
        producer.send(Message("t", b"new"), queue=queue)
        poll_until(lambda: b"new" in taken, 10)
        assert len(taken) < 400


def test_a_shutdown_during_the_start_stops_what_the_start_makes(mq: Connection, admin: Admin) -> None:
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


def test_two_starts_at_once_make_one_member(mq: Connection, services: Services, admin: Admin) -> None:
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
