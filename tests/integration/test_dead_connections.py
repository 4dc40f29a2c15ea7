"""Test that silently dead connections are replaced, and that the health reports failures meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from raymq.actors.errors import OutcomeUnknown
from raymq.actors.wire import dead_peer_detector
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PushConsumer
from raymq.client import consumer_health as health_module
from raymq.client.push import queue_fetcher
from raymq.client.requests import fetch_request as requests
from tests.integration.cable import Cable
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.fixture
def cable(services: Services) -> Iterator[Cable]:
    host, _, port = services.brokers["broker-a"].address.rpartition(":")
    made = Cable((host, int(port)))
    services.loop.run(made.start())
    yield made
    services.loop.run(made.stop())


@pytest.fixture
def cabled(services: Services, admin: Admin, cable: Cable, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Yield a connection that reaches broker-a through the cable."""
    with Connection([services.name_server.address]) as mq:
        get = mq.routes.get

        async def through_the_cable(topic: str, **options: Any) -> Any:
            route = await get(topic, **options)
            return replace(route, addresses=dict(route.addresses) | {"broker-a": cable.address})

        monkeypatch.setattr(mq.routes, "get", through_the_cable)
        yield mq


@pytest.fixture
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_peer_detector, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(health_module, "FAILING_SECONDS", 1.0)
    monkeypatch.setattr(queue_fetcher, "_PARK_SECONDS", 0.5)
    monkeypatch.setattr(requests, "ANSWER_SECONDS", 0.5)


@pytest.mark.usefixtures("_short_timeouts")
@pytest.mark.long
def test_consumer_recovers_over_new_connection(
    cabled: Connection, cable: Cable, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = RecordingListener()
    with PushConsumer(cabled, "g", {"t": "*"}, taker) as consumer, Connection(cabled.name_servers) as other:
        producer = Producer(other, "p")
        producer.send(Message("t", b"before"), queue=QUEUE)
        poll_until(lambda: taker.bodies == [b"before"], 10)
        poll_until(lambda: consumer.health.ok, 10)
        with monkeypatch.context() as never:
            never.setattr(dead_peer_detector, "SILENT_SECONDS", 1e9)
            services.loop.run(_run_on_loop(cable.freeze))
            producer.send(Message("t", b"behind"), queue=QUEUE)
            poll_until(lambda: not consumer.health.ok, 20)
            (failing,) = consumer.health.fetches
            assert failing.broker == "broker-a"
            assert failing.count >= 1
            assert "no answer" in failing.error
            assert taker.bodies == [b"before"]
        poll_until(lambda: taker.bodies == [b"before", b"behind"], 20)
        poll_until(lambda: consumer.health.ok and not consumer.health.fetches, 20)


@pytest.mark.usefixtures("_short_timeouts")
def test_producer_recovers_over_new_connection(cabled: Connection, cable: Cable, services: Services) -> None:
    with Producer(cabled, "p", timeout=0.5, retries=0) as producer:
        assert producer.send_async(Message("t", b"before"), queue=QUEUE).result(10).queue == QUEUE
        services.loop.run(_run_on_loop(cable.freeze))
        outcomes: list[bool] = []

        def is_sent() -> bool:
            try:
                producer.send_async(Message("t", b"x"), queue=QUEUE).result(10)
            except OutcomeUnknown:
                outcomes.append(False)
                return False
            return True

        poll_until(is_sent, 20)
        assert outcomes, "it takes a while to know"


@pytest.mark.usefixtures("_short_timeouts")
def test_long_poll_keeps_silent_connection(cabled: Connection, cable: Cable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_fetcher, "_PARK_SECONDS", 2.5)
    taker = RecordingListener()
    with PushConsumer(cabled, "g", {"t": "*"}, taker) as consumer, Connection(cabled.name_servers) as other:
        poll_until(lambda: consumer.health.works, 10)
        used = cabled.run(cabled.pool.get(cable.address))
        quiet_until = time.monotonic() + 4.0
        poll_until(lambda: time.monotonic() > quiet_until, 10)
        Producer(other, "p").send(Message("t", b"x"), queue=QUEUE)
        poll_until(lambda: taker.bodies == [b"x"], 10)
        assert cabled.run(cabled.pool.get(cable.address)) is used
        assert consumer.health.ok


async def _run_on_loop(action: Any) -> None:
    action()


def test_consumer_health_recovers_without_new_messages(services: Services, mq: Connection, admin: Admin) -> None:
    """A fetch that waited for messages used to leave the earlier failure in the health for 15 s."""
    del admin
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker) as consumer, Producer(mq, "p") as producer:
        producer.send(Message("t", b"it consumes"), queue=QUEUE)
        poll_until(lambda: taker.bodies, 20)
        services.crash_broker("broker-a")
        poll_until(lambda: consumer.health.fetches, 10)
        services.start_broker("broker-a")
        poll_until(lambda: not consumer.health.fetches, 10)
        assert consumer.health.ok
