"""Test topics of brokers that have left: such a topic is unavailable, not unknown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.actors import route_cache
from raymq.actors.errors import ProtocolError, ServerBusy, TopicNotFound, TopicUnavailable
from raymq.actors.names import route_table as name_server
from raymq.actors.names.route_handlers import handlers
from raymq.actors.names.route_table import EXPIRY_SECONDS, LEARNING_SECONDS, RouteTable
from raymq.actors.protocol import RECENTLY_LEFT_SECONDS, MessageQueue, QueueData, RecentlyLeftQueues, TopicRoute
from raymq.actors.route_cache import ROUTE_SECONDS, RouteCache
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.route_answers import read_route, read_view
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import GetClusterInfo
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants


@pytest.fixture
def table(clock: FakeClock) -> Iterator[RouteTable]:
    made = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    yield made
    check_invariants(made)


def register(table: RouteTable, broker: str, *topics: str, queues: int = 2, replica: int = 0) -> None:
    address = f"{broker}:{replica + 1}"
    table.register("c", broker, replica, address, {name: QueueData(broker, queues, queues) for name in topics})


def outcome(table: RouteTable, topic: str) -> Any:
    """Return a topic's living and recently left brokers, or its error with the brokers."""
    try:
        found = table.route(topic)
    except (TopicNotFound, ServerBusy, TopicUnavailable) as error:
        return type(error).__name__, getattr(error, "broker", "")
    return list(found.addresses), [(each.data.broker, round(each.seconds)) for each in found.away]


def test_topic_without_living_broker_is_unavailable(table: RouteTable, clock: FakeClock) -> None:
    """Guard against reporting a topic as unknown when its brokers have left (fault 12)."""
    register(table, "a", "t")
    register(table, "b", "t", "of b")
    clock.advance(EXPIRY_SECONDS + 0.1)
    table.expire()
    assert outcome(table, "t") == ("TopicUnavailable", "a, b")
    assert outcome(table, "of b") == ("TopicUnavailable", "b")
    assert outcome(table, "none") == ("TopicUnavailable", "cluster"), "nobody is there who could say"
    register(table, "a", "t")
    assert outcome(table, "t") == (["a"], [("b", 0)])
    assert outcome(table, "of b") == ("TopicUnavailable", "b")
    assert outcome(table, "none") == ("TopicNotFound", "")
    clock.advance(RECENTLY_LEFT_SECONDS - 1)
    assert outcome(table, "t") == (["a"], [("b", round(RECENTLY_LEFT_SECONDS) - 1)])
    clock.advance(2)
    assert outcome(table, "t") == (["a"], [])
    assert outcome(table, "of b") == ("TopicNotFound", "")


def test_unregistered_broker_counts_as_recently_left(table: RouteTable) -> None:
    register(table, "a", "t")
    register(table, "b", "of b")
    register(table, "b", "of b", replica=1)
    table.unregister("b", 0)
    assert outcome(table, "of b") == (["b"], []), "its other replica is there"
    table.unregister("b", 1)
    table.unregister("b", 1)
    assert outcome(table, "of b") == ("TopicUnavailable", "b")


def test_returned_broker_reports_its_topics(table: RouteTable) -> None:
    register(table, "a", "t")
    register(table, "b", "t", "of b")
    table.unregister("b", 0)
    register(table, "b", "t")
    assert outcome(table, "t") == (["a", "b"], [])
    assert outcome(table, "of b") == ("TopicNotFound", "")


def test_deleted_topic_is_not_found(table: RouteTable) -> None:
    register(table, "a", "t", "u")
    register(table, "b", "t", "u")
    table.unregister("b", 0)
    table.delete_topic("t", "another cluster")
    assert outcome(table, "t") == (["a"], [("b", 0)])
    table.delete_topic("t")
    assert outcome(table, "t") == ("TopicNotFound", "")
    assert outcome(table, "u") == (["a"], [("b", 0)])


def test_away_broker_without_write_permission_is_left_out(table: RouteTable) -> None:
    register(table, "a", "t", queues=1)
    register(table, "b", "t", queues=1)
    table.wipe_write_permission("b")
    table.unregister("b", 0)
    assert table.route("t").writable_away() == []


def test_recently_left_brokers_are_bounded(
    table: RouteTable, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_server, "MAX_REGISTRATIONS", 4)
    monkeypatch.setattr(name_server, "MAX_TOPICS", 6)
    for number in range(4):
        register(table, f"b{number}", f"t{number}")
        clock.advance(1)
    for number in range(3):
        table.unregister(f"b{number}", 0)
    register(table, "new", "u")
    assert outcome(table, "t0") == ("TopicNotFound", ""), "who left first is forgotten first"
    assert outcome(table, "t1") == ("TopicUnavailable", "b1")
    register(table, "new", "u", "v", "w", "x")
    assert outcome(table, "t1") == ("TopicNotFound", "")
    assert outcome(table, "t2") == ("TopicUnavailable", "b2")
    check_invariants(table)


def ask(table: RouteTable, **fields: str) -> Command:
    """Return the answer to a client that requests the route of t."""
    request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "t", **fields})
    route = handlers(table, lambda _: None)[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    try:
        answer = route(None, request)  # type: ignore[arg-type]
    except TopicUnavailable as error:
        return error_codec.error_response(request, error)
    assert isinstance(answer, Command)
    return answer


def test_rocketmq_clients_get_rocketmq_route_answers(table: RouteTable) -> None:
    register(table, "a", "t")
    alone = ask(table).body
    register(table, "b", "t")
    table.unregister("b", 0)
    assert ask(table).body == alone
    ours = ask(table, raymqAway="true")
    assert set(json.loads(ours.body)) - set(json.loads(alone)) == {"raymqAway"}
    assert read_route("t", ours.body).away == (RecentlyLeftQueues(QueueData("b", 2, 2), 0),)
    table.unregister("a", 0)
    answer = ask(table)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert str(answer.remark).startswith("No topic route info in name server for the topic: t")
    error = error_codec.error_from_response(answer)
    assert isinstance(error, TopicUnavailable)
    assert error.broker == "a, b"


def test_cluster_view_names_brokers_that_left_lately(table: RouteTable, clock: FakeClock) -> None:
    register(table, "a", "t")
    register(table, "b", "t")
    address = table.view().brokers["b"][1][0]
    serve = handlers(table, lambda _: None)[RequestCode.GET_BROKER_CLUSTER_INFO]

    def ask_all(*, raymq_away: bool) -> Command:
        answer = serve(None, GetClusterInfo(raymq_away=raymq_away).command())  # type: ignore[arg-type]
        assert isinstance(answer, Command)
        return answer

    assert read_view(ask_all(raymq_away=True).body).left == {}
    table.unregister("b", 0)
    assert read_view(ask_all(raymq_away=True).body).left == {"b": address}
    assert "raymqAway" not in json.loads(ask_all(raymq_away=False).body), "RocketMQ's clients see the registered ones"
    register(table, "b", "t")
    assert table.view().left == {}
    table.unregister("b", 0)
    clock.advance(RECENTLY_LEFT_SECONDS + 1)
    assert table.view().left == {}


# -- the client's route cache ------------------------------------------------------------------------------------------


@pytest.fixture
def routes(clock: FakeClock, table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> RouteCache:
    """Return the route cache of a client whose name server has `table`."""
    monkeypatch.setattr(route_cache, "boottime", clock)
    made = RouteCache(ConnectionPool(), ["n:1"])

    async def answer_from_table(command: Command, *_: Any, **__: Any) -> Command:
        try:
            answer = handlers(table, lambda _: None)[command.code](None, command)  # type: ignore[arg-type]
        except (TopicNotFound, TopicUnavailable) as error:
            raise error_codec.error_from_response(error_codec.error_response(command, error)) from None
        assert isinstance(answer, Command)
        return answer

    monkeypatch.setattr(made, "ask", answer_from_table)
    return made


def queues_of(*brokers: str) -> list[MessageQueue]:
    return [MessageQueue("t", broker, number) for broker in brokers for number in range(2)]


async def test_cached_route_serves_while_brokers_are_away(
    routes: RouteCache, table: RouteTable, clock: FakeClock
) -> None:
    """Guard against TopicNotFound in a running client after 30 s (fault 12)."""
    register(table, "a", "t")
    known = await routes.get("t")
    table.unregister("a", 0)
    for _ in range(5):
        clock.advance(ROUTE_SECONDS + 1)
        assert await routes.get("t") is known
        assert await routes.get("t", fresh=True) is known
    register(table, "a", "u")
    clock.advance(ROUTE_SECONDS + 1)
    with pytest.raises(TopicNotFound):
        await routes.get("t")


async def test_keyed_queues_survive_name_server_restart(
    routes: RouteCache, table: RouteTable, clock: FakeClock
) -> None:
    """Guard against moving a broker's keys after one "no such topic" answer (fault 9)."""
    register(table, "a", "t")
    register(table, "b", "t")
    assert routes.keyed(await routes.get("t")) == queues_of("a", "b")
    for broker in ("a", "b"):
        table.unregister(broker, 0)
    younger = RouteTable(clock)  # a restarted name server that knows other brokers only
    table._brokers, table._away = younger._brokers, younger._away
    table._count = table._topics = 0
    register(table, "c", "u")
    clock.advance(ROUTE_SECONDS + 1)
    with pytest.raises(TopicUnavailable):
        await routes.get("t")
    register(table, "a", "t")
    route = await routes.get("t")
    assert routes.keyed(route) == queues_of("a", "b")
    assert routes.away(route) == ["b"]
    clock.advance(RECENTLY_LEFT_SECONDS)
    assert routes.keyed(await routes.get("t")) == queues_of("a")


async def test_new_client_keeps_keyed_queues_of_away_broker(
    routes: RouteCache, table: RouteTable, clock: FakeClock
) -> None:
    register(table, "a", "t")
    register(table, "b", "t")
    table.unregister("b", 0)
    clock.advance(RECENTLY_LEFT_SECONDS - 10)
    route = await routes.get("t")
    assert (routes.keyed(route), routes.away(route)) == (queues_of("a", "b"), ["b"])
    assert route.addresses.keys() == {"a"}
    clock.advance(11)
    route = await routes.get("t", fresh=True)
    assert (routes.keyed(route), routes.away(route)) == (queues_of("a"), [])
    assert routes._writable["t"].keys() == {"a"}


async def test_client_forgets_deleted_topic(routes: RouteCache, table: RouteTable) -> None:
    register(table, "a", "t")
    register(table, "b", "t")
    await routes.get("t")
    table.unregister("b", 0)
    table.delete_topic("t")
    routes.forget("t")
    register(table, "a", "t")
    assert routes.keyed(await routes.get("t")) == queues_of("a")


async def test_invalidated_route_keeps_queues_of_away_broker(routes: RouteCache, table: RouteTable) -> None:
    register(table, "a", "t")
    register(table, "b", "t")
    await routes.get("t")
    routes.invalidate("t")
    assert routes.known("t") is None
    table._brokers.pop("b")
    assert routes.keyed(await routes.get("t")) == queues_of("a", "b")
    table._count, table._topics = 1, 1


def test_invalid_away_brokers_raise_protocol_error() -> None:
    there = {"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    route_json = {
        "queueDatas": [there],
        "brokerDatas": [{"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "a:1"}}],
    }
    away = {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "awaySeconds": 3}

    def read(*brokers: dict[str, Any]) -> TopicRoute:
        return read_route("t", json.dumps(route_json | {"raymqAway": brokers}).encode())

    assert read(away).away == (RecentlyLeftQueues(QueueData("b", 1, 1), 3),)
    assert [data.broker for data in read(away).queues] == ["a"]
    for wrong in ({"awaySeconds": -1}, {"awaySeconds": "3"}, {"perm": None}, {"brokerName": "a"}, {"brokerName": ""}):
        with pytest.raises(ProtocolError):
            read(away | wrong)
