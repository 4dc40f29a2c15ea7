"""Test stored batch plans of streaming queries and queue bounds, over real sockets, without Spark."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from raymq.actors.names.service import NameServerService
from raymq.actors.wire.commands.coordinator_directory_commands import known_brokers_command, read_known_brokers
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.bulk.coordinator_lookup import ensure_coordinator
from raymq.client.bulk.range_reader import bounds
from raymq.client.errors import BrokerUnavailable, InvalidInput, MessageNotFound, TopicNotFound
from raymq.spark_bridge.offset_ranges import plan
from raymq.spark_bridge.stream_tasks import STREAM_KIND, BatchPlanStore
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

#: Seconds to wait for available brokers.
PATIENT = 10.0


@pytest.fixture
def plan_store(mq: Connection) -> BatchPlanStore:
    return BatchPlanStore(mq, "agg", mq.run(ensure_coordinator(mq, STREAM_KIND, "agg")))


def test_plans_survive_coordinator_crash(services: Services, mq: Connection, plan_store: BatchPlanStore) -> None:
    assert mq.run(plan_store.kept("query-1")).plans == {}
    assert mq.run(plan_store.plan("query-1", 0, b"plan 0")) == b"plan 0"
    assert mq.run(plan_store.plan("query-1", 1, b"plan 1")) == b"plan 1"
    coordinator = mq.run(ensure_coordinator(mq, STREAM_KIND, "agg"))
    services.crash_broker(coordinator)
    services.start_broker(coordinator)
    assert mq.run(plan_store.plan("query-1", 1, b"another")) == b"plan 1"
    assert mq.run(plan_store.kept("query-1")) == ("query-1", {0: b"plan 0", 1: b"plan 1"})
    assert mq.run(plan_store.kept(None)).query == "query-1"
    with pytest.raises(InvalidInput):
        mq.run(plan_store.plan("no/name", 0, b""))


def test_unplanned_stream_has_no_query(mq: Connection, plan_store: BatchPlanStore) -> None:
    assert mq.run(plan_store.kept(None)) == ("", {})


def test_bounds_cover_all_queues_of_topics(mq: Connection, admin: Admin) -> None:
    admin.create_topic("u", queues=1)
    with Producer(mq, "tests") as producer:
        for _ in range(3):
            producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-b", 1))
    found = mq.run(bounds(mq, ["t", "u"], {}, PATIENT))
    assert set(found) == {(topic, broker) for topic in "tu" for broker in ("broker-a", "broker-b")}
    kept = found["t", "broker-b"].queues
    assert [(kept[queue_id].low, kept[queue_id].high) for queue_id in (0, 1)] == [(0, 0), (0, 3)]
    assert {tuple(sorted(each.queues)) for (topic, _), each in found.items() if topic == "t"} == {(0, 1)}
    assert all(each.readable and each.kept is None for answer in found.values() for each in answer.queues.values())
    other_epoch = mq.run(bounds(mq, ["t"], {("t", "broker-b"): 12_345}, PATIENT))["t", "broker-b"].queues
    assert other_epoch[1].kept == 0  # an unknown epoch guarantees no messages
    with pytest.raises(TopicNotFound):
        mq.run(bounds(mq, ["t", "nobody"], {}, PATIENT))


def test_removed_queue_still_has_bounds(mq: Connection, admin: Admin) -> None:
    queue = MessageQueue("t", "broker-a", 1)
    with Producer(mq, "tests") as producer:
        producer.send(Message("t", b"x"), queue=queue)
    admin.update_topic("t", queues=1)
    answer = mq.run(bounds(mq, ["t"], {}, PATIENT))["t", "broker-a"].queues
    assert (answer[1].readable, answer[1].high, answer[0].readable) == (False, 1, True)


def test_recreated_topic_has_new_id(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "tests") as producer:
        producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0))
        before = mq.run(bounds(mq, ["t"], {}, PATIENT))["t", "broker-a"]
        admin.delete_topic("t")
        admin.create_topic("t", queues=2)
    after = mq.run(bounds(mq, ["t"], {}, PATIENT))["t", "broker-a"]
    assert before.queues[0].high == 1
    assert after.topic_id not in {"", before.topic_id}
    assert after.queues[0].high == 0


def test_bounds_wait_for_known_broker_then_fail(services: Services, mq: Connection, admin: Admin) -> None:
    found = mq.run(bounds(mq, ["t"], {}, PATIENT))
    epochs = {origin: each.epoch for origin, each in found.items()}
    services.crash_broker("broker-b")
    poll_until(lambda: set(mq.run(mq.routes.cluster()).masters) == {"broker-a"})
    with Connection([services.name_server.address]) as another:
        with pytest.raises(BrokerUnavailable, match="broker-b"):
            another.run(bounds(another, ["t"], epochs, 0.5))
        services.start_broker("broker-b")
        again = another.run(bounds(another, ["t"], epochs, 30.0))
    assert again.keys() == found.keys()


@pytest.mark.parametrize("is_new", [False, True])
def test_planning_waits_for_unavailable_broker(services: Services, mq: Connection, admin: Admin, is_new: bool) -> None:
    """Cover a regression: a read planned during a broker restart silently missed its messages."""
    for broker in ("broker-a", "broker-b"):
        with Producer(mq, "tests") as producer:
            producer.send(Message("t", b"x"), queue=MessageQueue("t", broker, 0))
    services.stop_broker("broker-b")
    with Connection([services.name_server.address]) as other, ThreadPoolExecutor(1) as pool:
        client = other if is_new else mq
        with pytest.raises(BrokerUnavailable, match="broker-b"):
            client.run(bounds(client, ["t"], {}, 0.5))
        planning = pool.submit(plan, client, ["t"], "earliest", "latest")
        services.start_broker("broker-b")
        assert sum(each.end - each.start for each in planning.result(PATIENT)) == 2


def test_planning_waits_for_broker_after_name_server_restart(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: a restarted name server did not know the last returning broker.

    After a start of the whole cluster, or of a machine with the name server and a broker, a read missed that broker's
    messages, and a stream from "latest" read all of them.
    """
    with Producer(mq, "tests") as producer:
        for broker in ("broker-a", "broker-b"):
            producer.send(Message("t", b"x"), queue=MessageQueue("t", broker, 0))
    poll_until(lambda: set(list_known_brokers(mq)) == {"broker-a", "broker-b"}, PATIENT)
    services.stop_broker("broker-b")
    services.loop.run(services.name_server.stop())
    services.name_server = services.loop.run(NameServerService.start(services.name_server_spec))
    poll_until(lambda: "broker-a" in mq.run(mq.routes.cluster()).masters, PATIENT)
    with Connection([services.name_server.address]) as other, ThreadPoolExecutor(1) as pool:
        with pytest.raises(BrokerUnavailable, match="broker-b"):
            other.run(bounds(other, ["t"], {}, 1.0))
        planning = pool.submit(plan, other, ["t"], "earliest", "latest")
        services.start_broker("broker-b")
        assert sum(each.end - each.start for each in planning.result(PATIENT)) == 2
        assert set(other.run(bounds(other, ["t"], {}, PATIENT))) == {("t", "broker-a"), ("t", "broker-b")}


def list_known_brokers(mq: Connection) -> list[str]:
    with contextlib.suppress(MessageNotFound):
        return read_known_brokers(mq.run(mq.routes.ask(known_brokers_command())))
    return []


def test_forgotten_broker_is_not_waited_for(services: Services, mq: Connection, admin: Admin) -> None:
    services.stop_broker("broker-b")
    admin.forget_broker("broker-b")
    for epochs in ({}, {("t", "broker-b"): 5}):
        found = poll_until(lambda epochs=epochs: mq.run(bounds(mq, ["t"], epochs, PATIENT)), PATIENT)
        assert set(found) == {("t", "broker-a")}
