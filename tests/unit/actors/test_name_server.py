"""Test a name server's route table: registration, expiry, routes and startup."""

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
from tests.validation import check_invariants

ONE, TWO, THREE = (DataVersion(counter, counter) for counter in (1, 2, 3))


def topics(*names: str) -> dict[str, QueueData]:
    return {name: QueueData("a", 1, 1) for name in names}


@pytest.fixture
def table(clock: FakeClock) -> Iterator[RouteTable]:
    made = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    yield made
    check_invariants(made)


def register(table: RouteTable, broker: str, address: str = "h:1", queues: int = 2, replica: int = 0) -> None:
    table.register("c", broker, replica, address, {"t": QueueData(broker, queues, queues)})


def test_route_names_every_broker_of_topic(table: RouteTable) -> None:
    register(table, "b", "h:2", queues=1)
    register(table, "a", "h:1")
    route = table.route("t")
    assert route.addresses == {"a": "h:1", "b": "h:2"}
    assert route.readable() == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]
    assert table.topics() == ["t"]


def test_silent_broker_leaves_routes(table: RouteTable, clock: FakeClock) -> None:
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


def test_new_name_server_raises_busy_for_unknown_topic(clock: FakeClock) -> None:
    table = RouteTable(clock)
    with pytest.raises(ServerBusy):
        table.route("t")
    register(table, "a")
    assert table.route("t").addresses == {"a": "h:1"}
    clock.advance(LEARNING_SECONDS)
    with pytest.raises(TopicNotFound):
        table.route("other")


def test_new_name_server_withholds_incomplete_route(clock: FakeClock) -> None:
    """Guard against reordered messages of a key after a name server's start.

    A broker registered again some tenths of a second late. A client without a route sent the broker's keys elsewhere,
    where later messages overtook those that the broker still held.
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
    table.unregister("b", 0)  # its topics are known now
    assert cast("Command", serve(connection, ours)).code == ResponseCode.SUCCESS


def test_replica_registration_does_not_complete_group(clock: FakeClock) -> None:
    table = RouteTable(clock)
    register(table, "a")
    table.register("c", "b", 2, "h:3", {})
    with pytest.raises(ServerBusy):
        table.check_all_known(("a", "b"))
    register(table, "b", "h:2")
    table.check_all_known(("a", "b"))


def test_missing_brokers_are_ignored_after_learning_time(clock: FakeClock) -> None:
    table = RouteTable(clock)
    register(table, "a")
    with pytest.raises(ServerBusy):
        table.check_all_known(("a", "b"))
    clock.advance(LEARNING_SECONDS)
    table.check_all_known(("a", "b"))


def test_registration_replaces_previous_one(table: RouteTable) -> None:
    register(table, "a", "h:1")
    register(table, "a", "h:9", queues=5)
    assert table.route("t").addresses == {"a": "h:9"}
    assert len(table.route("t").writable()) == 5


def test_deleted_topic_leaves_routes_at_once(table: RouteTable) -> None:
    register(table, "a")
    table.delete_topic("t")
    with pytest.raises(TopicNotFound):
        table.route("t")


def test_cluster_view_names_master(table: RouteTable) -> None:
    register(table, "a", "h:1")
    register(table, "a", "h:2", replica=1)
    assert table.view().masters == {"a": "h:1"}
    table.unregister("a", 0)
    assert table.view().brokers == {"a": ("c", {1: "h:2"})}


def test_queues_without_write_permission_are_not_writable(table: RouteTable) -> None:
    table.register("c", "a", 0, "h:1", {"t": QueueData("a", 1, 1, perm=4)})
    assert table.route("t").writable() == []
    assert table.route("t").readable() == [MessageQueue("t", "a", 0)]


def test_heartbeat_keeps_broker_and_reports_known_topics(table: RouteTable, clock: FakeClock) -> None:
    assert not table.heartbeat("a", 0, "h:1", ONE)
    table.register("c", "a", 0, "h:1", topics("t"), ONE)
    for _ in range(3):
        clock.advance(EXPIRY_SECONDS - 0.1)
        assert table.heartbeat("a", 0, "h:1", ONE)
        assert table.expire() == []
    assert not table.heartbeat("a", 0, "h:1", TWO)
    assert not table.heartbeat("a", 0, "h:9", ONE)


def test_topic_change_is_applied_incrementally(table: RouteTable) -> None:
    table.register("c", "a", 0, "h:1", topics("kept", "gone"), ONE)
    assert table.amend("a", 0, ONE, TWO, topics("new"), ["gone"])
    assert sorted(table.topics()) == ["kept", "new"]
    assert table.heartbeat("a", 0, "h:1", TWO)


def test_topic_change_with_other_base_version_is_refused(table: RouteTable) -> None:
    assert not table.amend("a", 0, ONE, TWO, topics("new"), [])
    table.register("c", "a", 0, "h:1", topics("kept"), ONE)
    assert not table.amend("a", 0, TWO, THREE, topics("new"), ["kept"])
    assert table.topics() == ["kept"]


def test_broker_with_closed_connection_expires_sooner(table: RouteTable, clock: FakeClock) -> None:
    first, second = object(), object()
    table.register("c", "a", 0, "h:1", topics("t"), ONE, first)
    table.register("c", "b", 0, "h:2", topics("t"), ONE, second)
    table.connection_closed(first)
    clock.advance(SUSPECT_SECONDS + 0.1)
    assert table.expire() == ["a"]
    assert list(table.route("t").addresses) == ["b"]


def test_heartbeat_clears_suspicion(table: RouteTable, clock: FakeClock) -> None:
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


def test_broker_must_register_again_after_topic_delete(table: RouteTable) -> None:
    table.register("c", "a", 0, "h:1", topics("t"), ONE)
    table.delete_topic("t", "another cluster")
    assert table.heartbeat("a", 0, "h:1", ONE)
    table.delete_topic("t", "c")
    assert table.topics() == []
    assert not table.heartbeat("a", 0, "h:1", ONE), "it has to register, and so to say what it really has"


def test_topics_are_listed_by_cluster(table: RouteTable) -> None:
    table.register("one", "a", 0, "h:1", topics("t"))
    table.register("two", "b", 0, "h:2", topics("u"))
    assert table.topics("one") == ["t"]
    assert sorted(table.topics()) == ["t", "u"]
