"""All brokers of a topic are away, and a name server is there: that is said, and waited for, not "no such topic"."""

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
from tests.integration.foreign import Foreign
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def stop_all(services: Services) -> None:
    for name in list(services.brokers):
        services.stop_broker(name)


@pytest.fixture
def new(services: Services, admin: Admin) -> Iterator[Connection]:
    """A client that knows no route, as in a new process, of brokers that have just gone."""
    del admin
    poll_until(lambda: is_old(services), 10, "the name server says what it knows")
    stop_all(services)
    with Connection([services.name_server.address]) as connection:
        yield connection


def is_old(services: Services) -> bool:
    with Foreign(services.name_server.address) as peer:
        return peer.ask(route_headers.GetRouteInfo("none").command()).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_new_client_is_told_that_the_brokers_are_away(new: Connection) -> None:
    """Fault 12: each of these raised TopicNotFound, "trying again does not help"."""
    producer = Producer(new, "p", timeout=0.5)
    calls: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
        "send": (lambda: producer.send(Message("t", b"x")), NotStored),
        "send to a queue": (lambda: producer.send(Message("t", b"x"), queue=QUEUE), NotStored),
        "send of a key": (lambda: producer.send(Message("t", b"x"), sharding_key="k"), NotStored),
        "send_batch": (lambda: producer.send_batch([Message("t", b"x")] * 2), NotStored),
        "push": (
            lambda: PushConsumer(new, "n", {"t": "*"}, lambda _: ConsumeResult.SUCCESS).start(),
            BrokerUnavailable,
        ),
        "simple": (lambda: SimpleConsumer(new, "n", {"t": "*"}), BrokerUnavailable),
        "poll": (lambda: PullConsumer(new, "n").poll(QUEUE, timeout=0.5), BrokerUnavailable),
        "queues": (lambda: PullConsumer(new, "n").queues("t"), BrokerUnavailable),
    }
    for name, (call, error) in calls.items():
        with pytest.raises(error) as caught:
            call()
        assert caught.value.retriable, name  # type: ignore[attr-defined]


def test_rocketmqs_clients_are_told_what_they_know(services: Services, new: Connection) -> None:
    del new
    with Foreign(services.name_server.address) as peer:
        answer = peer.ask(route_headers.GetRouteInfo("t").command())
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_spark_task_waits_for_brokers_that_it_has_never_met(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p") as producer:
        for number in range(3):
            producer.send(Message("t", b"%d" % number), queue=QUEUE)
    poll_until(lambda: is_old(services), 10)
    stop_all(services)
    reader = RangeReader((services.name_server.address,), None)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(lambda: list(reader.table(QUEUE, 0, 3)))
        wait([reading], 1.0)
        assert not reading.done()
        services.start_broker("broker-a")
        assert [row for table in reading.result(40) for row in table["body"].to_pylist()] == [b"0", b"1", b"2"]


@pytest.mark.long
def test_a_running_client_keeps_what_it_knew(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 12: when its routes were 30 s old, it was told that there is no such topic."""
    del admin
    monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.5)
    producer = Producer(mq, "p", timeout=0.5)
    waiting = producer.send(Message("t", b"later", deliver_at=time.time() + 600))
    with SimpleConsumer(mq, "s", {"t": "*"}) as simple, PullConsumer(mq, "g") as pull:
        pull.seek(QUEUE, 0)
        poll_until(lambda: is_old(services), 10)
        stop_all(services)
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
        poll_until(lambda: _sends(producer), 20, "it goes on")


def restart_name_server(services: Services) -> None:
    services.loop.run(services.name_server.stop())
    services.name_server = services.loop.run(NameServerService.start(services.name_server_spec))


@pytest.mark.long
def test_a_running_client_keeps_what_it_knew_over_a_restart_of_the_name_server(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server had forgotten who is away, knew another broker, and said that there is no such topic."""
    monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.5)
    services.start_broker("broker-c")
    producer = Producer(mq, "p", timeout=0.5)
    with SimpleConsumer(mq, "s", {"t": "*"}) as simple, PullConsumer(mq, "g") as pull:
        producer.send(Message("t", b"x"), queue=QUEUE)
        for name in ("broker-a", "broker-b"):
            services.stop_broker(name)
        restart_name_server(services)
        poll_until(lambda: is_old(services) and mq.routes.known("t") is None, 20, "it says what it knows")
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
        poll_until(lambda: _sends(producer), 20, "it goes on")
        Admin(mq).delete_topic("t")
        with pytest.raises(TopicNotFound):
            admin.topic_stats("t")


def test_clients_go_on_within_seconds_after_a_long_outage(
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
        monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.5)  # the outage was longer than a route is young
        for name in ("broker-a", "broker-b"):
            services.stop_broker(name)
        services.loop.run(services.name_server.stop())
        poll_until(lambda: mq.pool.is_offline, 10, "nothing answers")
        mq.run(as_after_minutes())
        services.name_server = services.loop.run(NameServerService.start(services.name_server_spec))
        for name in ("broker-a", "broker-b"):
            services.start_broker(name)
        with Connection([services.name_server.address]) as other:
            poll_until(lambda: _sends(Producer(other, "p2")), 10)
        poll_until(lambda: b"x" in received, 6, "the consumer goes on")


def _sends(producer: Producer) -> bool:
    try:
        return bool(producer.send(Message("t", b"x")).message_id)
    except SendError:
        return False


def test_no_such_topic_is_said_where_brokers_live(services: Services, admin: Admin) -> None:
    poll_until(lambda: is_old(services), 10)
    services.stop_broker("broker-b")
    with pytest.raises(TopicNotFound):
        admin.topic_stats("none")


def test_a_search_says_which_brokers_it_has_not_asked(
    services: Services, mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 13: what lay on a broker that was away was missing without a word."""
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
    with Connection([services.name_server.address]) as new:
        admin = Admin(new)
        found = admin.query_by_key("t", "both")
        assert ([message.body for message in found], found.not_asked) == ([b"1"], ("broker-b",))
        assert admin.query_by_unique_key("t", first.unique_key).body == b"1"
        left = admin.dlq_list("g")
        assert ([message.body for message in left], left.not_asked) == ([b"1"], ("broker-b",))
        assert [message.body for message in admin.dlq_messages("g")] == [b"1"]
        assert caplog.text.count("skipped brokers that are not reachable: broker-b") == 4
        redriven = admin.dlq_redrive("g", list(dead.values()), dry_run=True)
        assert redriven == RedriveResult([dead[b"1"]], [], [dead[b"2"]], ["broker-b"])
        told = CliRunner().invoke(
            main_group, ["--name-servers", services.name_server.address, "dlq", "redrive", "g", "--dry-run", "--json"]
        )
        assert json.loads(told.stdout)["not_asked"] == ["broker-b"]
        for search in (
            lambda: admin.query_by_key("t", "of-b"),
            lambda: admin.query_by_unique_key("t", second.unique_key),
            lambda: admin.dlq_redrive("g", [dead[b"2"]]),
        ):
            with pytest.raises(BrokerUnavailable, match="broker-b"):
                search()


def test_keys_of_a_new_client_wait_for_a_broker_that_left_before_it_began(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """Fault 9: what one process sent to broker-b, the next one sent to broker-a, while b was restarted."""
    del admin
    keys = [f"key-{number}" for number in range(12)]
    with Producer(mq, "p") as producer:
        homes = {key: producer.send(Message("t", b"x"), sharding_key=key).queue for key in keys}
    services.stop_broker("broker-b")
    with Connection([services.name_server.address]) as new, Producer(new, "p", timeout=0.5) as producer:
        for key, home in homes.items():
            if home.broker == "broker-a":
                assert producer.send(Message("t", b"x"), sharding_key=key).queue == home
            else:
                with pytest.raises(NotStored, match="broker-b"):
                    producer.send(Message("t", b"x"), sharding_key=key)
