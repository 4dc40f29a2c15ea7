"""The route table: registration, expiry, routes, a start from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from raymq.actors.errors import ServerBusy, TopicNotFound, TopicUnavailable
from raymq.actors.names.route_handlers import handlers
from raymq.actors.names.route_table import EXPIRY_SECONDS, LEARNING_SECONDS, SUSPECT_SECONDS, RouteTable
from raymq.actors.protocol import MessageQueue, QueueData
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import GetRouteInfo
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.clock import FakeClock

ONE, TWO, THREE = (DataVersion(counter, counter) for counter in (1, 2, 3))


def topics(*names: str) -> dict[str, QueueData]:
    return {name: QueueData("a", 1, 1) for name in names}


@pytest.fixture
def table(clock: FakeClock) -> Iterator[RouteTable]:
    made = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    yield made
    made.validate()


def register(table: RouteTable, broker: str, address: str = "h:1", queues: int = 2, replica: int = 0) -> None:
    table.register("c", broker, replica, address, {"t": QueueData(broker, queues, queues)})


def test_a_route_names_every_broker_that_has_the_topic(table: RouteTable) -> None:
    register(table, "b", "h:2", queues=1)
    register(table, "a", "h:1")
    route = table.route("t")
    assert route.addresses == {"a": "h:1", "b": "h:2"}
    assert route.readable() == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]
    assert table.topics() == ["t"]


def test_a_silent_broker_leaves_the_routes(table: RouteTable, clock: FakeClock) -> None:
    register(table, "a")
    clock.advance(EXPIRY_SECONDS / 2)
    register(table, "b")
    clock.advance(EXPIRY_SECONDS / 2 + 0.1)
    assert table.expire() == ["a"]
    assert list(table.route("t").addresses) == ["b"]
    clock.advance(EXPIRY_SECONDS)
    assert table.expire() == ["b"]
    assert table.topics() == []
    with pytest.raises(TopicUnavailable):
        table.route("t")


def test_expiry_is_below_the_promised_5_seconds() -> None:
    assert EXPIRY_SECONDS < 5.0


def test_a_young_name_server_does_not_deny_what_it_may_not_have_heard(clock: FakeClock) -> None:
    table = RouteTable(clock)
    with pytest.raises(ServerBusy):
        table.route("t")
    register(table, "a")
    assert table.route("t").addresses == {"a": "h:1"}
    clock.advance(LEARNING_SECONDS)
    with pytest.raises(TopicNotFound):
        table.route("other")


def test_a_young_name_server_tells_no_route_that_may_lack_a_broker(clock: FakeClock) -> None:
    """A client that had no route yet sent the keys of a broker elsewhere that was not heard of again for some tenths of
    a second, where later messages overtook what lay on it.
    """
    table = RouteTable(clock)
    serve = handlers(table, lambda _: None, lambda: ("a", "b"))[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    ours, rocketmqs = GetRouteInfo("t", raymq_away=True).command(), GetRouteInfo("t").command()
    connection = cast("ServerConnection", None)
    register(table, "a")
    with pytest.raises(ServerBusy):
        serve(connection, ours)
    assert cast("Command", serve(connection, rocketmqs)).code == ResponseCode.SUCCESS
    register(table, "b", "h:2")
    assert cast("Command", serve(connection, ours)).code == ResponseCode.SUCCESS
    table.unregister("b", 0)  # what it had is known now
    assert cast("Command", serve(connection, ours)).code == ResponseCode.SUCCESS


def test_a_replica_that_follows_does_not_say_what_its_group_has(clock: FakeClock) -> None:
    table = RouteTable(clock)
    register(table, "a")
    table.register("c", "b", 2, "h:3", {})
    with pytest.raises(ServerBusy):
        table.check_all_known(("a", "b"))
    register(table, "b", "h:2")
    table.check_all_known(("a", "b"))


def test_it_waits_for_nobody_any_more_once_it_is_there_for_a_while(clock: FakeClock) -> None:
    table = RouteTable(clock)
    register(table, "a")
    with pytest.raises(ServerBusy):
        table.check_all_known(("a", "b"))
    clock.advance(LEARNING_SECONDS)
    table.check_all_known(("a", "b"))


def test_a_registration_replaces_the_one_before(table: RouteTable) -> None:
    register(table, "a", "h:1")
    register(table, "a", "h:9", queues=5)
    assert table.route("t").addresses == {"a": "h:9"}
    assert len(table.route("t").writable()) == 5


def test_a_topic_that_is_deleted_goes_at_once(table: RouteTable) -> None:
    register(table, "a")
    table.delete_topic("t")
    with pytest.raises(TopicNotFound):
        table.route("t")


def test_the_view_names_the_master(table: RouteTable) -> None:
    register(table, "a", "h:1")
    register(table, "a", "h:2", replica=1)
    assert table.view().masters == {"a": "h:1"}
    table.unregister("a", 0)
    assert table.view().brokers == {"a": ("c", {1: "h:2"})}


def test_queues_without_permission_are_not_offered(table: RouteTable) -> None:
    table.register("c", "a", 0, "h:1", {"t": QueueData("a", 1, 1, perm=4)})
    assert table.route("t").writable() == []
    assert table.route("t").readable() == [MessageQueue("t", "a", 0)]


def test_a_heartbeat_keeps_a_broker_and_tells_whether_its_topics_are_known(table: RouteTable, clock: FakeClock) -> None:
    assert not table.heartbeat("a", 0, "h:1", ONE)
    table.register("c", "a", 0, "h:1", topics("t"), ONE)
    for _ in range(3):
        clock.advance(EXPIRY_SECONDS - 0.1)
        assert table.heartbeat("a", 0, "h:1", ONE)
        assert table.expire() == []
    assert not table.heartbeat("a", 0, "h:1", TWO)
    assert not table.heartbeat("a", 0, "h:9", ONE)


def test_a_change_is_told_alone(table: RouteTable) -> None:
    table.register("c", "a", 0, "h:1", topics("kept", "gone"), ONE)
    assert table.amend("a", 0, ONE, TWO, topics("new"), ["gone"])
    assert table.topics() == ["kept", "new"]
    assert table.heartbeat("a", 0, "h:1", TWO)


def test_a_change_of_another_table_is_refused(table: RouteTable) -> None:
    assert not table.amend("a", 0, ONE, TWO, topics("new"), [])
    table.register("c", "a", 0, "h:1", topics("kept"), ONE)
    assert not table.amend("a", 0, TWO, THREE, topics("new"), ["kept"])
    assert table.topics() == ["kept"]


def test_a_broker_whose_connection_closed_is_suspected(table: RouteTable, clock: FakeClock) -> None:
    first, second = object(), object()
    table.register("c", "a", 0, "h:1", topics("t"), ONE, first)
    table.register("c", "b", 0, "h:2", topics("t"), ONE, second)
    table.connection_closed(first)
    clock.advance(SUSPECT_SECONDS + 0.1)
    assert table.expire() == ["a"]
    assert list(table.route("t").addresses) == ["b"]


def test_a_suspected_broker_that_is_heard_again_is_trusted_again(table: RouteTable, clock: FakeClock) -> None:
    first, second = object(), object()
    table.register("c", "a", 0, "h:1", topics("t"), ONE, first)
    table.connection_closed(first)
    assert table.heartbeat("a", 0, "h:1", ONE, second)
    table.connection_closed(first)
    clock.advance(SUSPECT_SECONDS + 0.1)
    assert table.expire() == []


def test_write_permission_stays_wiped_over_registrations(table: RouteTable) -> None:
    table.register("c", "a", 0, "h:1", topics("t", "u"), ONE)
    assert table.wipe_write_permission("a") == 2
    assert table.wipe_write_permission("a") == 0
    table.register("c", "a", 0, "h:1", topics("t", "u", "v"), TWO)
    assert table.route("v").queues[0].perm == 4
    assert table.route("v").readable() != []
    assert table.add_write_permission("a") == 3
    assert table.route("v").queues[0].perm == 6
    assert table.wipe_write_permission("unknown") == 0
    assert not table._read_only, "names that somebody makes up are not kept"


def test_a_topic_that_its_broker_still_has_comes_back(table: RouteTable) -> None:
    table.register("c", "a", 0, "h:1", topics("t"), ONE)
    table.delete_topic("t", "another cluster")
    assert table.heartbeat("a", 0, "h:1", ONE)
    table.delete_topic("t", "c")
    assert table.topics() == []
    assert not table.heartbeat("a", 0, "h:1", ONE), "it has to register, and so to say what it really has"


def test_topics_of_a_cluster(table: RouteTable) -> None:
    table.register("one", "a", 0, "h:1", topics("t"))
    table.register("two", "b", 0, "h:2", topics("u"))
    assert table.topics("one") == ["t"]
    assert table.topics() == ["t", "u"]
