"""Test that clients report or await offline brokers of a topic instead of raising TopicNotFound."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.actors import route_cache
from raymq.actors.names.service import NameServerService
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.headers import route_headers
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RedriveResult,
    Retry,
    SimpleConsumer,
)
from raymq.client.bulk.range_reader import RangeReader
from raymq.client.errors import BrokerUnavailable, NotStored, SendError, TopicNotFound
from raymq.cluster.cli import main_group
from tests.integration.conftest import Services
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def stop_all_brokers(services: Services) -> None:
    for name in list(services.brokers):
        services.stop_broker(name)


@pytest.fixture
def new_client(services: Services, admin: Admin) -> Iterator[Connection]:
    """Yield a client without routes, as in a new process, after all brokers have stopped."""
    del admin
    poll_until(lambda: name_server_is_ready(services), 10, "the name server says what it knows")
    stop_all_brokers(services)
    with Connection([services.name_server.address]) as connection:
        yield connection


def name_server_is_ready(services: Services) -> bool:
    with ForeignClient(services.name_server.address) as peer:
        return peer.ask(route_headers.GetRouteInfo("none").command()).code == ResponseCode.TOPIC_NOT_EXIST


def test_new_client_gets_retriable_errors(new_client: Connection) -> None:
    """Fault 12: each of these calls raised TopicNotFound, which is not retriable."""
    producer = Producer(new_client, "p", timeout=0.5)
    calls: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
        "send": (lambda: producer.send(Message("t", b"x")), NotStored),
        "send to a queue": (lambda: producer.send(Message("t", b"x"), queue=QUEUE), NotStored),
        "send of a key": (lambda: producer.send(Message("t", b"x"), sharding_key="k"), NotStored),
        "send_batch": (lambda: producer.send_batch([Message("t", b"x")] * 2), NotStored),
        "push": (
            lambda: PushConsumer(new_client, "n", {"t": "*"}, lambda _: ConsumeResult.SUCCESS).start(),
            BrokerUnavailable,
        ),
        "simple": (lambda: SimpleConsumer(new_client, "n", {"t": "*"}), BrokerUnavailable),
        "poll": (lambda: PullConsumer(new_client, "n").poll(QUEUE, timeout=0.5), BrokerUnavailable),
        "queues": (lambda: PullConsumer(new_client, "n").queues("t"), BrokerUnavailable),
    }
    for name, (call, error) in calls.items():
        with pytest.raises(error) as caught:
            call()
        assert caught.value.retriable, name  # type: ignore[attr-defined]


def test_rocketmq_client_gets_topic_not_exist(services: Services, new_client: Connection) -> None:
    del new_client
    with ForeignClient(services.name_server.address) as peer:
        answer = peer.ask(route_headers.GetRouteInfo("t").command())
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_spark_task_waits_for_offline_brokers(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p") as producer:
        for number in range(3):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)
    poll_until(lambda: name_server_is_ready(services), 10)
    stop_all_brokers(services)
    reader = RangeReader((services.name_server.address,), None)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(lambda: list(reader.table(QUEUE, 0, 3)))
        wait([reading], 1.0)
        assert not reading.done()
        services.start_broker("broker-a")
        assert [row for table in reading.result(40) for row in table["body"].to_pylist()] == [b"0", b"1", b"2"]


@pytest.mark.long
def test_running_client_keeps_expired_routes(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 12: when its routes were 30 s old, the client got TopicNotFound."""
    del admin
    monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.5)
    producer = Producer(mq, "p", timeout=0.5)
    waiting = producer.send(Message("t", b"later", deliver_at=time.time() + 600))
    with SimpleConsumer(mq, "s", {"t": "*"}) as simple, PullConsumer(mq, "g") as pull:
        pull.seek(QUEUE, 0)
        poll_until(lambda: name_server_is_ready(services), 10)
        stop_all_brokers(services)
        poll_until(lambda: mq.routes.known("t") is None, 10, "the route is old")
        calls: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
            "send": (lambda: producer.send(Message("t", b"x")), SendError),
            "receive": (lambda: simple.receive(await_duration=3.0), BrokerUnavailable),
            "poll": (lambda: pull.poll(QUEUE, timeout=0.5), BrokerUnavailable),
            "recall": (lambda: producer.recall(waiting, timeout=0.5), BrokerUnavailable),
        }
        for call, error in calls.values():
            with pytest.raises(error):
                call()
        for name in ("broker-a", "broker-b"):
            services.start_broker(name)
        poll_until(lambda: _can_send(producer), 20, "it goes on")


def restart_name_server(services: Services) -> None:
    services.loop.run(services.name_server.stop())
    services.name_server = services.loop.run(NameServerService.start(services.name_server_spec))


@pytest.mark.long
def test_running_client_keeps_routes_over_name_server_restart(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restarted name server had lost the offline brokers and answered TOPIC_NOT_EXIST."""
    monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.5)
    services.start_broker("broker-c")
    producer = Producer(mq, "p", timeout=0.5)
    with SimpleConsumer(mq, "s", {"t": "*"}) as simple, PullConsumer(mq, "g") as pull:
        producer.send(Message("t", b"x"), queue=QUEUE)
        for name in ("broker-a", "broker-b"):
            services.stop_broker(name)
        restart_name_server(services)
        poll_until(lambda: name_server_is_ready(services) and mq.routes.known("t") is None, 20, "it says what it knows")
        poll_until(lambda: set(mq.run(mq.routes.cluster()).masters) == {"broker-c"}, 20)
        calls: list[tuple[Callable[[], Any], type[Exception]]] = [
            (lambda: producer.send(Message("t", b"x")), NotStored),
            (lambda: simple.receive(await_duration=0.5), BrokerUnavailable),
            (lambda: pull.poll(QUEUE, timeout=0.5), BrokerUnavailable),
            (lambda: admin.topic_stats("t"), BrokerUnavailable),
        ]
        for call, error in calls:
            with pytest.raises(error):
                call()
        with pytest.raises(TopicNotFound):
            admin.topic_stats("none")
        for name in ("broker-a", "broker-b"):
            services.start_broker(name)
        poll_until(lambda: _can_send(producer), 20, "it goes on")
        Admin(mq).delete_topic("t")
        with pytest.raises(TopicNotFound):
            admin.topic_stats("t")


def test_clients_recover_within_seconds_after_long_outage(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        received.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    async def as_after_minutes() -> None:
        for peer in mq.pool._peers.values():
            peer.not_before, peer.backoff.failures = time.monotonic() + 100, 20

    with PushConsumer(mq, "g-outage", {"t": "*"}, listener):
        Producer(mq, "p").send(Message("t", b"before"))
        poll_until(lambda: received, 10)
        monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.5)  # the outage lasted longer than a route stays fresh
        for name in ("broker-a", "broker-b"):
            services.stop_broker(name)
        services.loop.run(services.name_server.stop())
        poll_until(lambda: mq.pool.is_offline, 10, "nothing answers")
        mq.run(as_after_minutes())
        services.name_server = services.loop.run(NameServerService.start(services.name_server_spec))
        for name in ("broker-a", "broker-b"):
            services.start_broker(name)
        with Connection([services.name_server.address]) as other:
            poll_until(lambda: _can_send(Producer(other, "p2")), 10)
        poll_until(lambda: b"x" in received, 6, "the consumer goes on")


def _can_send(producer: Producer) -> bool:
    try:
        return bool(producer.send(Message("t", b"x")).message_id)
    except SendError:
        return False


def test_unknown_topic_raises_topic_not_found(services: Services, admin: Admin) -> None:
    poll_until(lambda: name_server_is_ready(services), 10)
    services.stop_broker("broker-b")
    with pytest.raises(TopicNotFound):
        admin.topic_stats("none")


def test_query_reports_brokers_not_asked(
    services: Services, mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 13: results of an offline broker were missing without a notice."""
    here, there = QUEUE, MessageQueue("t", "broker-b", 0)
    with (
        Producer(mq, "p") as producer,
        PushConsumer(mq, "g", {"t": "*"}, lambda _: Retry(-1)),
    ):
        first = producer.send(Message("t", b"1", keys=["both", "of-a"]), queue=here)
        second = producer.send(Message("t", b"2", keys=["both", "of-b"]), queue=there)
        poll_until(lambda: len(admin.dlq_list("g")) == 2, 20)
    dead = {message.body: message.message_id for message in admin.dlq_list("g")}
    assert admin.dlq_list("g").not_asked == admin.query_by_key("t", "both").not_asked == ()
    services.stop_broker("broker-b")
    with Connection([services.name_server.address]) as new_client:
        admin = Admin(new_client)
        found = admin.query_by_key("t", "both")
        assert ([message.body for message in found], found.not_asked) == ([b"1"], ("broker-b",))
        assert admin.query_by_unique_key("t", first.unique_key).body == b"1"
        left = admin.dlq_list("g")
        assert ([message.body for message in left], left.not_asked) == ([b"1"], ("broker-b",))
        assert [message.body for message in admin.dlq_messages("g")] == [b"1"]
        assert caplog.text.count("skipped brokers that are not reachable: broker-b") == 4
        redriven = admin.dlq_redrive("g", list(dead.values()), dry_run=True)
        assert redriven == RedriveResult([dead[b"1"]], [], [dead[b"2"]], ["broker-b"])
        output = CliRunner().invoke(
            main_group, ["--name-servers", services.name_server.address, "dlq", "redrive", "g", "--dry-run", "--json"]
        )
        assert json.loads(output.stdout)["not_asked"] == ["broker-b"]
        for search in (
            lambda: admin.query_by_key("t", "of-b"),
            lambda: admin.query_by_unique_key("t", second.unique_key),
            lambda: admin.dlq_redrive("g", [dead[b"2"]]),
        ):
            with pytest.raises(BrokerUnavailable, match="broker-b"):
                search()


def test_keyed_send_of_new_client_waits_for_offline_broker(services: Services, mq: Connection, admin: Admin) -> None:
    """Fault 9: a new process sent a key to broker-a that had gone to broker-b, while b was restarted."""
    del admin
    keys = [f"key-{number}" for number in range(12)]
    with Producer(mq, "p") as producer:
        expected_queues = {key: producer.send(Message("t", b"x"), sharding_key=key).queue for key in keys}
    services.stop_broker("broker-b")
    with Connection([services.name_server.address]) as new_client, Producer(new_client, "p", timeout=0.5) as producer:
        for key, expected in expected_queues.items():
            if expected.broker == "broker-a":
                assert producer.send(Message("t", b"x"), sharding_key=key).queue == expected
            else:
                with pytest.raises(NotStored, match="broker-b"):
                    producer.send(Message("t", b"x"), sharding_key=key)
