"""Exactly once and in order over a network that loses answers and connections, and over restarts of the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.protocol import TopicRoute
from raymq.actors.routing import Routes
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import OutcomeUnknown
from tests.integration.conftest import Services
from tests.integration.proxy import LossyProxy

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def proxy(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyProxy]:
    """Stands before broker-a: every route leads through it."""
    host, _, port = services.brokers["broker-a"].address.rpartition(":")
    made = LossyProxy((host, int(port)))
    services.loop.run(made.start())
    straight = Routes.get

    async def through_the_proxy(self: Routes, topic: str, **options: object) -> TopicRoute:
        route = await straight(self, topic, **options)  # type: ignore[arg-type]
        return TopicRoute(route.topic, route.queues, {**route.addresses, "broker-a": made.address})

    monkeypatch.setattr(Routes, "get", through_the_proxy)
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
def quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost answer is noticed after 50 ms: the tests lose hundreds."""
    monkeypatch.setattr("raymq.actors.core.producing.SendPlan.try_timeout", lambda plan: min(0.05, plan.remaining))


@pytest.mark.usefixtures("admin", "quick_tries")
def test_lost_answers_make_no_duplicates(mq: Connection, proxy: LossyProxy) -> None:
    send_through_losses(mq, proxy, 300)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("admin", "quick_tries")
def test_lost_answers_make_no_duplicates_in_10000_messages(mq: Connection, proxy: LossyProxy) -> None:
    send_through_losses(mq, proxy, 10_000)


@pytest.mark.usefixtures("admin", "quick_tries")
def test_a_producer_without_numbers_does_store_twice(mq: Connection, proxy: LossyProxy) -> None:
    with Producer(mq, "p", timeout=30, retries=100) as producer:
        proxy.drop = 0.5
        for number in range(20):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)
        proxy.drop = 0.0
    assert len(bodies(mq, QUEUE)) > 20


@pytest.mark.usefixtures("admin", "quick_tries")
@pytest.mark.parametrize("clean", [True, False])
def test_a_restarted_broker_still_knows_what_it_stored(
    services: Services, mq: Connection, proxy: LossyProxy, clean: bool
) -> None:
    with Producer(mq, "p", idempotent=True, timeout=20, retries=200) as producer:
        producer.send(Message("t", b"0"), queue=QUEUE)
        proxy.drop = 1.0
        lost = producer.send_async(Message("t", b"1"), queue=QUEUE)
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


@pytest.mark.usefixtures("admin", "quick_tries")
def test_after_an_unknown_outcome_the_producer_goes_on(mq: Connection, proxy: LossyProxy) -> None:
    with Producer(mq, "p", idempotent=True, timeout=10) as producer:
        producer.send(Message("t", b"0"), queue=QUEUE)
        proxy.drop = 1.0
        with pytest.raises(OutcomeUnknown) as caught:
            producer.send(Message("t", b"1"), queue=QUEUE)
        assert {attempt.broker for attempt in caught.value.attempts} == {"broker-a"}
        proxy.drop = 0.0
        assert producer.send(Message("t", b"2"), queue=QUEUE).queue_offset == 2


def test_a_batch_in_doubt_stays_with_the_broker_that_may_hold_it(
    mq: Connection, admin: Admin, proxy: LossyProxy
) -> None:
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
