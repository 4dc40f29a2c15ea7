"""What brokers keep of streaming queries and tell of their topics' queues, over real sockets, without Spark."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from raymq.actors.names.service import NameServerService
from raymq.actors.wire.commands.known_broker_commands import known_brokers_command, read_known_brokers
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.bulk.batch_plans import STREAM_KIND, BatchPlanStore, bounds, queue_bounds
from raymq.client.bulk.coordinator_lookup import ensure_coordinator
from raymq.client.errors import BrokerUnavailable, InvalidInput, MessageNotFound, QueueNotFound, TopicNotFound
from raymq.spark_bridge.offset_ranges import plan
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

#: For what is there.
PATIENT = 10.0


@pytest.fixture
def register(mq: Connection) -> BatchPlanStore:
    return BatchPlanStore(mq, "agg", mq.run(ensure_coordinator(mq, STREAM_KIND, "agg")))


def test_plans_are_kept_on_the_home_and_outlive_its_death(
    services: Services, mq: Connection, register: BatchPlanStore
) -> None:
    assert mq.run(register.kept("query-1")).plans == {}
    assert mq.run(register.plan("query-1", 0, b"plan 0")) == b"plan 0"
    assert mq.run(register.plan("query-1", 1, b"plan 1")) == b"plan 1"
    home = mq.run(ensure_coordinator(mq, STREAM_KIND, "agg"))
    services.crash_broker(home)
    services.start_broker(home)
    assert mq.run(register.plan("query-1", 1, b"another")) == b"plan 1"
    assert mq.run(register.kept("query-1")) == ("query-1", {0: b"plan 0", 1: b"plan 1"})
    assert mq.run(register.kept(None)).query == "query-1"
    with pytest.raises(InvalidInput):
        mq.run(register.plan("no/name", 0, b""))


def test_a_stream_that_nobody_planned_has_no_query(mq: Connection, register: BatchPlanStore) -> None:
    assert mq.run(register.kept(None)) == ("", {})


def test_the_bounds_of_all_queues_of_topics(mq: Connection, admin: Admin) -> None:
    admin.create_topic("u", queues=1)
    with Producer(mq, "tests") as producer:
        for _ in range(3):
            producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-b", 1))
    found = mq.run(bounds(mq, ["t", "u"], {}, PATIENT))
    assert set(found) == {(topic, broker) for topic in "tu" for broker in ("broker-a", "broker-b")}
    assert queue_bounds(found, MessageQueue("t", "broker-b", 1)) == (0, 3)
    assert queue_bounds(found, MessageQueue("t", "broker-b", 0)) == (0, 0)
    assert {tuple(sorted(each.queues)) for (topic, _), each in found.items() if topic == "t"} == {(0, 1)}
    assert all(each.readable and each.kept is None for told in found.values() for each in told.queues.values())
    of_another_time = mq.run(bounds(mq, ["t"], {("t", "broker-b"): 12_345}, PATIENT))["t", "broker-b"].queues
    assert of_another_time[1].kept == 0  # of an epoch that is not known nothing can be relied on
    with pytest.raises(QueueNotFound):
        queue_bounds(found, MessageQueue("t", "broker-b", 2))
    with pytest.raises(TopicNotFound):
        mq.run(bounds(mq, ["t", "nobody"], {}, PATIENT))


def test_a_queue_that_was_taken_away_still_tells_what_it_holds(mq: Connection, admin: Admin) -> None:
    queue = MessageQueue("t", "broker-a", 1)
    with Producer(mq, "tests") as producer:
        producer.send(Message("t", b"x"), queue=queue)
    admin.update_topic("t", queues=1)
    told = mq.run(bounds(mq, ["t"], {}, PATIENT))["t", "broker-a"].queues
    assert (told[1].readable, told[1].high, told[0].readable) == (False, 1, True)


def test_a_topic_that_was_made_anew_is_known_by_its_id(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "tests") as producer:
        producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0))
        before = mq.run(bounds(mq, ["t"], {}, PATIENT))["t", "broker-a"]
        admin.delete_topic("t")
        admin.create_topic("t", queues=2)
    after = mq.run(bounds(mq, ["t"], {}, PATIENT))["t", "broker-a"]
    assert before.queues[0].high == 1
    assert after.topic_id not in {"", before.topic_id}
    assert after.queues[0].high == 0


def test_a_broker_that_is_known_and_away_is_waited_for_and_then_told(
    services: Services, mq: Connection, admin: Admin
) -> None:
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
def test_a_broker_that_is_away_is_waited_for_and_its_queues_are_not_left_out(
    services: Services, mq: Connection, admin: Admin, is_new: bool
) -> None:
    """A read that was planned while a broker was started anew had none of its messages, and nothing said so."""
    for broker in ("broker-a", "broker-b"):
        with Producer(mq, "tests") as producer:
            producer.send(Message("t", b"x"), queue=MessageQueue("t", broker, 0))
    services.stop_broker("broker-b")
    with Connection([services.name_server.address]) as other, ThreadPoolExecutor(1) as pool:
        who = other if is_new else mq
        with pytest.raises(BrokerUnavailable, match="broker-b"):
            who.run(bounds(who, ["t"], {}, 0.5))
        planning = pool.submit(plan, who, ["t"], "earliest", "latest")
        services.start_broker("broker-b")
        assert sum(each.end - each.start for each in planning.result(PATIENT)) == 2


def test_who_is_away_when_a_name_server_starts_is_waited_for_too(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """After a start of the whole cluster, or of the machine with the name server and a broker, a read had nothing of
    the broker that was back last: the name server did not know what it has. A stream from "latest" read all of that.
    """
    with Producer(mq, "tests") as producer:
        for broker in ("broker-a", "broker-b"):
            producer.send(Message("t", b"x"), queue=MessageQueue("t", broker, 0))
    poll_until(lambda: set(name_servers_members(mq)) == {"broker-a", "broker-b"}, PATIENT)
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


def name_servers_members(mq: Connection) -> list[str]:
    with contextlib.suppress(MessageNotFound):
        return read_known_brokers(mq.run(mq.routes.ask(known_brokers_command())))
    return []


def test_a_broker_that_is_gone_for_good_is_not_waited_for(services: Services, mq: Connection, admin: Admin) -> None:
    services.stop_broker("broker-b")
    admin.forget_broker("broker-b")
    for epochs in ({}, {("t", "broker-b"): 5}):
        found = poll_until(lambda epochs=epochs: mq.run(bounds(mq, ["t"], epochs, PATIENT)), PATIENT)
        assert set(found) == {("t", "broker-a")}
