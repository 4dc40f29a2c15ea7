"""Test that idempotent sends are stored once and in order despite lost answers, connections and restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.protocol import TopicRoute
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.blocking_channel import BlockingChannelPool
from raymq.actors.wire.codes import RequestCode
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import NotStored, OutcomeUnknown, RayMQError, StoreFailed
from raymq.client.produce.outbox_file import OutboxFile
from raymq.storage.log.record_checker import CheckedRecord
from tests.integration.conftest import Services
from tests.integration.proxy import LossyProxy

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def proxy(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyProxy]:
    """Yield a proxy in front of broker-a that every route leads through."""
    host, _, port = services.brokers["broker-a"].address.rpartition(":")
    made = LossyProxy((host, int(port)))
    services.loop.run(made.start())
    get, known = RouteCache.get, RouteCache.known

    def reroute(route: TopicRoute) -> TopicRoute:
        return TopicRoute(route.topic, route.queues, {**route.addresses, "broker-a": made.address})

    async def get_through_proxy(self: RouteCache, topic: str, **options: object) -> TopicRoute:
        return reroute(await get(self, topic, **options))  # type: ignore[arg-type]

    def known_through_the_proxy(self: RouteCache, topic: str) -> TopicRoute | None:
        route = known(self, topic)
        return None if route is None else reroute(route)

    monkeypatch.setattr(RouteCache, "get", get_through_proxy)
    monkeypatch.setattr(RouteCache, "known", known_through_the_proxy)
    yield made
    services.loop.run(made.stop())


def bodies(mq: Connection, queue: MessageQueue) -> list[bytes]:
    with PullConsumer(mq, "reader") as pull:
        pull.seek(queue, 0)
        found: list[bytes] = []
        while len(found) < pull.offsets(queue)[1]:
            found += [message.body for message in pull.poll(queue, 1_000, timeout=5.0)]
        return found


def send_through_losses(mq: Connection, proxy: LossyProxy, count: int) -> None:
    expected = [b"%d" % number for number in range(count)]
    with Producer(mq, "p", idempotent=True, timeout=count / 20 + 30, retries=200) as producer:
        proxy.drop, proxy.cut = 0.2, 0.02
        at = 0
        while at < count:
            size = 1 + at % 7
            batch = [Message("t", body) for body in expected[at : at + size]]
            results = producer.send_batch(batch, queue=QUEUE) if size > 1 else [producer.send(batch[0], queue=QUEUE)]
            assert [result.queue_offset for result in results] == list(range(at, at + len(batch)))
            at += len(batch)
        proxy.drop = proxy.cut = 0.0
    assert bodies(mq, QUEUE) == expected
    assert proxy.dropped
    assert proxy.hung_up


@pytest.fixture
def short_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten each try to 50 ms, as the tests lose hundreds of answers."""
    monkeypatch.setattr("raymq.actors.sending.send_plan.SendPlan.try_timeout", lambda plan: min(0.05, plan.remaining))
    monkeypatch.setattr("raymq.actors.sending.direct_sender.first_try_timeout", lambda _: 0.05)


@pytest.mark.usefixtures("admin", "short_tries")
def test_lost_answers_cause_no_duplicates(mq: Connection, proxy: LossyProxy) -> None:
    send_through_losses(mq, proxy, 300)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("admin", "short_tries")
def test_lost_answers_cause_no_duplicates_in_10000_messages(mq: Connection, proxy: LossyProxy) -> None:
    send_through_losses(mq, proxy, 10_000)


@pytest.mark.usefixtures("admin", "short_tries")
def test_plain_producer_stores_duplicates(mq: Connection, proxy: LossyProxy) -> None:
    with Producer(mq, "p", timeout=30, retries=100) as producer:
        proxy.drop = 0.5
        for number in range(20):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)
        proxy.drop = 0.0
    assert len(bodies(mq, QUEUE)) > 20


@pytest.mark.usefixtures("admin", "short_tries")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("quick", [True, False])
def test_restarted_broker_recognises_stored_messages(
    services: Services, mq: Connection, proxy: LossyProxy, clean: bool, quick: bool
) -> None:
    with Producer(mq, "p", idempotent=True, timeout=20, retries=1_000_000) as producer, ThreadPoolExecutor(1) as other:
        producer.send(Message("t", b"0"), queue=QUEUE)
        proxy.drop = 1.0
        message = Message("t", b"1")
        send = partial(other.submit, producer.send) if quick else producer.send_async
        lost = send(message, queue=QUEUE)
        while not proxy.dropped:
            assert not lost.done()
        if clean:
            services.stop_broker("broker-a")
        else:
            services.crash_broker("broker-a")
        services.start_broker("broker-a")
        proxy.drop = 0.0
        assert lost.result(20).queue_offset == 1
        assert producer.send(Message("t", b"2"), queue=QUEUE).queue_offset == 2
    assert bodies(mq, QUEUE) == [b"0", b"1", b"2"]


@pytest.mark.usefixtures("admin", "short_tries")
def test_producer_continues_after_unknown_outcome(mq: Connection, proxy: LossyProxy) -> None:
    with Producer(mq, "p", idempotent=True, timeout=2.0) as producer:
        producer.send(Message("t", b"0"), queue=QUEUE)
        proxy.drop = 1.0
        with pytest.raises(OutcomeUnknown) as caught:
            producer.send(Message("t", b"1"), queue=QUEUE)
        assert {attempt.broker for attempt in caught.value.attempts} == {"broker-a"}
        proxy.drop = 0.0
        assert producer.send(Message("t", b"2"), queue=QUEUE).queue_offset == 2


def test_unconfirmed_message_is_retried_on_same_broker(mq: Connection, admin: Admin, proxy: LossyProxy) -> None:
    del admin
    with Producer(mq, "p", idempotent=True, timeout=1.0, isolation=None) as producer:
        proxy.drop = 1.0
        outcomes = []
        for number in range(4):
            try:
                outcomes.append({producer.send(Message("t", b"%d" % number)).queue.broker})
            except OutcomeUnknown as error:
                outcomes.append({attempt.broker for attempt in error.attempts})
    assert {"broker-a"} in outcomes
    assert {"broker-b"} in outcomes
    assert all(len(brokers) == 1 for brokers in outcomes)


@pytest.mark.parametrize("linger", [0.0, 0.001])
def test_unconfirmed_message_of_unrouted_broker_is_kept(
    mq: Connection, admin: Admin, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, linger: float
) -> None:
    """Such a send raised a KeyError, and the outbox did not keep its message."""
    del admin
    get = RouteCache.get

    async def get_without_broker_a(self: RouteCache, topic: str, *, fresh: bool = False, **options: Any) -> TopicRoute:
        route = await get(self, topic, fresh=fresh, **options)
        left = {broker: address for broker, address in route.addresses.items() if not fresh or broker != "broker-a"}
        return replace(route, queues=tuple(data for data in route.queues if data.broker in left), addresses=left)

    monkeypatch.setattr(RouteCache, "get", get_without_broker_a)
    path = tmp_path / "outbox"
    for outbox in (None, path):
        with Producer(mq, "p", idempotent=True, timeout=1.0, retries=1, linger=linger, outbox=outbox) as producer:
            producer.send(Message("t", b"known"), queue=QUEUE)
            proxy.drop = 1.0
            with pytest.raises(OutcomeUnknown) as raised:
                producer.send_async(Message("t", b"in doubt"), queue=QUEUE).result(10)
        proxy.drop = 0.0  # not earlier: an outbox keeps sending until its producer is closed
        first, *others = [attempt.broker for attempt in raised.value.attempts]
        assert first == "broker-a"
        assert set(others) == {None}
    assert raised.value.kept
    with contextlib.closing(OutboxFile(path)) as file:
        assert [record.body for batch in file.batches() for record in batch.messages()] == [b"in doubt"]


@pytest.mark.parametrize("batch", [False, True])
def test_producer_recovers_when_brokers_have_forgotten_it(services: Services, mq: Connection, batch: bool) -> None:
    """After an hour without sends each queue in turn refused the first send, which then was not stored."""
    Admin(mq).create_topic("t", queues=4)
    with Producer(mq, "p", idempotent=True, retries=1) as producer:
        for _ in range(2):
            sent = [
                producer.send_batch([Message("t", b"%d" % n)] * 3)[0] if batch else producer.send(Message("t", b"x"))
                for n in range(16)
            ]
            assert len({result.queue for result in sent}) == 8, "no broker is set aside for it"
            for broker in services.brokers.values():
                broker.core.producers.forget_topic("t")
    assert sum(stats.max_offset for stats in Admin(mq).topic_stats("t").values()) == 32 * (3 if batch else 1)


@pytest.fixture
def append_codes(services: Services) -> list[int]:
    """Return the codes of the append requests to broker-a."""
    codes: list[int] = []
    server = services.brokers["broker-a"]._server

    def count_calls(code: int) -> Callable[..., Any]:
        handler = server.handlers[code]

        class CountingHandler:
            def __call__(self, *arguments: Any) -> Any:
                codes.append(code)
                return handler(*arguments)

            def try_answer_inline(self, *arguments: Any) -> bool:
                done: bool = handler.try_answer_inline(*arguments)  # type: ignore[attr-defined]
                if done:
                    codes.append(code)
                return done

        return CountingHandler()

    wanted = (RequestCode.APPEND_RECORDS, RequestCode.APPEND_ONE, RequestCode.APPEND_ONE_SEQUENCED)
    server.handlers = {**server.handlers, **{code: count_calls(code) for code in wanted}}
    return codes


@pytest.mark.usefixtures("admin")
def test_single_sends_use_direct_path_after_losses(mq: Connection, proxy: LossyProxy, append_codes: list[int]) -> None:
    with Producer(mq, "p", idempotent=True, timeout=0.3, retries=0) as producer:
        for number in range(4):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)
        assert append_codes.count(RequestCode.APPEND_ONE_SEQUENCED) == 3  # the first send connects
        proxy.drop = 1.0
        with pytest.raises(OutcomeUnknown):
            producer.send(Message("t", b"4"), queue=QUEUE)
        proxy.drop = 0.0
        for number in range(5, 8):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)
        assert append_codes.count(RequestCode.APPEND_RECORDS) == 1
    assert bodies(mq, QUEUE) == [b"%d" % number for number in range(8)]


@pytest.mark.usefixtures("admin", "services")
def test_threads_and_event_loop_share_a_queue_in_order(mq: Connection, append_codes: list[int]) -> None:
    with Producer(mq, "p", idempotent=True, timeout=30) as producer, ThreadPoolExecutor(6) as threads:
        producer.send(Message("t", b"first"), queue=QUEUE)

        def send(thread: int) -> list[int]:
            offsets = []
            for number in range(40):
                message = Message("t", b"%d.%d" % (thread, number))
                if (thread + number) % 3:
                    offsets.append(producer.send(message, queue=QUEUE).queue_offset)
                else:
                    offsets.append(producer.send_async(message, queue=QUEUE).result(30).queue_offset)
            return offsets

        offsets = list(threads.map(send, range(6)))
    assert sorted(chain.from_iterable(offsets)) == list(range(1, 241))
    assert all(each == sorted(each) for each in offsets)
    assert len(set(bodies(mq, QUEUE))) == 241
    assert set(append_codes) <= {RequestCode.APPEND_RECORDS, RequestCode.APPEND_ONE_SEQUENCED}


@pytest.mark.usefixtures("admin")
def test_producer_starts_new_epoch_after_broker_forgot_it(services: Services, mq: Connection) -> None:
    core = services.brokers["broker-a"].core
    with Producer(mq, "p", idempotent=True, retries=0) as producer:
        for number in range(3):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)
        services.loop.loop.call_soon_threadsafe(core.producers.forget_topic, "t")
        with pytest.raises(NotStored):
            producer.send(Message("t", b"3"), queue=QUEUE)
        assert producer.send(Message("t", b"4"), queue=QUEUE).queue_offset == 3
    with Producer(mq, "q", idempotent=True) as producer:
        producer.send(Message("t", b"5"), queue=QUEUE)
        services.loop.loop.call_soon_threadsafe(core.producers.forget_topic, "t")
        assert producer.send(Message("t", b"6"), queue=QUEUE).queue_offset == 5
    assert bodies(mq, QUEUE) == [b"0", b"1", b"2", b"4", b"5", b"6"]


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("retries", [0, 1])
def test_sequence_number_in_doubt_is_not_reused(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    """A broker that fails halfway stores what it refuses; an interrupted caller does not know what it sent."""
    core = services.brokers["broker-a"].core
    append, ask = core.write_one, BlockingChannelPool.ask

    def half_way(single: CheckedRecord, **_: Any) -> None:
        append(single)
        core.dispatch_one(single)
        raise StoreFailed("half way")

    def interrupted(*arguments: Any) -> None:
        ask(*arguments)
        raise KeyboardInterrupt

    with Producer(mq, "p", idempotent=True, retries=retries) as producer:
        producer.send(Message("t", b"0"), queue=QUEUE)
        monkeypatch.setattr(core, "write_one", half_way)
        if retries:  # The event loop makes the second try.
            assert producer.send(Message("t", b"1"), queue=QUEUE).queue_offset == 2
        else:
            with pytest.raises(RayMQError):
                producer.send(Message("t", b"1"), queue=QUEUE)
        monkeypatch.undo()
        monkeypatch.setattr(BlockingChannelPool, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.send(Message("t", b"2"), queue=QUEUE)
        monkeypatch.undo()
        assert producer.send(Message("t", b"3"), queue=QUEUE).queue_offset == 3 + retries
    assert bodies(mq, QUEUE) == [b"0", *[b"1"] * (1 + retries), b"2", b"3"]
