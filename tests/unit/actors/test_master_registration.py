"""Test that a name server takes the broker of the larger epoch for a group's master."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.name_server_registration import NameServerRegistration
from raymq.actors.errors import FencedEpoch, TopicUnavailable
from raymq.actors.names import route_table as name_server
from raymq.actors.names.route_table import EXPIRY_SECONDS, LEARNING_SECONDS, RouteTable
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec, QueueData
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.registration_commands import register_command, topics_json
from raymq.actors.wire.commands.route_answers import read_route
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import GetBrokerMemberGroup, GetRouteInfo, RegisterBroker, UnregisterBroker
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants

TOPICS = {"t": QueueData("a", 2, 2)}


@pytest.fixture
def table(clock: FakeClock) -> Iterator[RouteTable]:
    made = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    yield made
    check_invariants(made)


def register_master(table: RouteTable, address: str, epoch: int) -> None:
    table.register("c", "a", 0, address, TOPICS, DataVersion(1, 1, epoch))


def register_replica(table: RouteTable, address: str, number: int, epoch: int = 0) -> None:
    table.register("c", "a", number, address, {}, DataVersion(0, 0, epoch))


def members(table: RouteTable) -> dict[int, str]:
    return table.member_group("c", "a")


def test_trap_13_master_with_larger_epoch_wins(table: RouteTable) -> None:
    """Cover apache/rocketmq #6316."""
    register_master(table, "h:2", 8)
    with pytest.raises(FencedEpoch, match="epoch 8"):
        register_master(table, "h:1", 7)
    assert table.route("t").addresses == {"a": "h:2"}
    register_master(table, "h:1", 9)
    assert table.route("t").addresses == {"a": "h:1"}


def test_stale_master_is_fenced_after_successor_left(table: RouteTable) -> None:
    register_master(table, "h:2", 8)
    register_replica(table, "h:3", 3, 8)
    table.unregister("a", 0, "h:2")
    with pytest.raises(FencedEpoch):
        register_master(table, "h:1", 7)
    assert members(table) == {3: "h:3"}
    table.unregister("a", 3, "h:3")
    register_master(table, "h:1", 1)  # no member of the group was left: the group may be a new one


def test_heartbeat_of_former_master_is_refused(table: RouteTable) -> None:
    register_master(table, "h:1", 7)
    register_master(table, "h:2", 8)
    assert not table.heartbeat("a", 0, "h:1", DataVersion(1, 1, 7))
    assert not table.amend("a", 0, DataVersion(1, 1, 8), DataVersion(2, 2, 8), {}, ["t"], "h:1")
    assert table.heartbeat("a", 0, "h:2", DataVersion(1, 1, 8))


def test_master_must_register_again_in_new_epoch(table: RouteTable) -> None:
    register_master(table, "h:1", 7)
    assert not table.heartbeat("a", 0, "h:1", DataVersion(1, 1, 8))
    assert not table.amend("a", 0, DataVersion(1, 1, 7), DataVersion(2, 2, 8), {}, [], "h:1")
    register_master(table, "h:1", 8)
    assert table.heartbeat("a", 0, "h:1", DataVersion(1, 1, 8))


def test_unreplicated_broker_replaces_its_registration(table: RouteTable) -> None:
    register_master(table, "h:1", 0)
    register_master(table, "h:2", 0)
    assert table.route("t").addresses == {"a": "h:2"}


def test_master_registering_as_replica_frees_master_id(table: RouteTable) -> None:
    register_master(table, "h:1", 7)
    register_replica(table, "h:2", 2, 7)
    register_replica(table, "h:1", 1, 7)
    assert members(table) == {1: "h:1", 2: "h:2"}
    assert table.view().masters == {}
    with pytest.raises(TopicUnavailable, match="a has the topic, but left the routes"):
        table.route("t")
    register_master(table, "h:2", 8)
    assert members(table) == {0: "h:2", 1: "h:1"}
    assert table.route("t").addresses == {"a": "h:2"}


def test_role_change_does_not_count_against_limits(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "MAX_REGISTRATIONS", 2)
    monkeypatch.setattr(name_server, "MAX_TOPICS", 1)
    register_master(table, "h:1", 7)
    register_replica(table, "h:2", 2, 7)
    register_replica(table, "h:1", 1, 7)
    register_master(table, "h:2", 8)
    assert members(table) == {0: "h:2", 1: "h:1"}


def test_unregistered_replica_keeps_others_registered(table: RouteTable) -> None:
    register_master(table, "h:1", 7)
    register_replica(table, "h:2", 2)
    register_replica(table, "h:3", 3)
    table.unregister("a", 2, "h:2")
    assert members(table) == {0: "h:1", 3: "h:3"}
    table.unregister("a", 0, "h:1")
    assert members(table) == {3: "h:3"}


def test_unregistered_former_master_keeps_successor(table: RouteTable) -> None:
    register_master(table, "h:1", 7)
    register_master(table, "h:2", 8)
    table.unregister("a", 0, "h:1")
    assert members(table) == {0: "h:2"}


def test_silent_master_expires_and_replicas_stay(table: RouteTable, clock: FakeClock) -> None:
    register_master(table, "h:1", 7)
    clock.advance(EXPIRY_SECONDS - 1.0)
    register_replica(table, "h:2", 2, 7)
    clock.advance(1.5)
    assert table.expire() == ["a"]
    assert members(table) == {2: "h:2"}
    with pytest.raises(TopicUnavailable):
        table.route("t")


def test_replica_with_topics_keeps_group_in_routes(table: RouteTable) -> None:
    register_master(table, "h:1", 7)
    table.register("c", "a", 1, "h:2", TOPICS, DataVersion(1, 1, 7))
    table.unregister("a", 0, "h:1")
    assert table.route("t").addresses == {"a": "h:2"}
    assert table.view().brokers == {"a": ("c", {1: "h:2"})}


class FixedTopics:
    """Advertise a fixed set of topics."""

    version = DataVersion(4, 5)

    def advertised_queues(self) -> dict[str, QueueData]:
        return TOPICS

    def changed_since(self, version: DataVersion) -> dict[str, QueueData | None] | None:
        return {} if version == self.version else None


@asynccontextmanager
async def run_name_server(directory: Path) -> AsyncIterator[tuple[NameServerService, ConnectionPool]]:
    server = await NameServerService.start(NameServerSpec(0, str(directory), "127.0.0.1", 0))
    pool = ConnectionPool()
    try:
        yield server, pool
    finally:
        await pool.close()
        await server.stop()


def make_registration(
    pool: ConnectionPool, server: NameServerService, number: int, address: str, epoch: int
) -> NameServerRegistration:
    return NameServerRegistration(
        pool, [server.address], "c", "a", address, FixedTopics(), broker_id=number, epoch=epoch, ha_address="h:99"
    )


async def request_json(pool: ConnectionPool, server: NameServerService, command: Command) -> Any:
    return json.loads(bytes((await pool.request(server.address, command, 5.0)).body))


async def test_wire_answers_list_master_of_larger_epoch_under_key_0(tmp_path: Path) -> None:
    async with run_name_server(tmp_path) as (server, pool):
        former, latter = make_registration(pool, server, 0, "h:1", 7), make_registration(pool, server, 0, "h:2", 8)
        await latter.announce()
        await former.announce()
        assert latter.troubles == {}
        assert "epoch 8" in former.troubles[server.address]
        await former.leave()
        replica = make_registration(pool, server, 1, "h:1", 8)
        await replica.announce()
        route = await request_json(pool, server, GetRouteInfo("t", True).command())
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "h:2", "1": "h:1"}
        group = await request_json(pool, server, GetBrokerMemberGroup("c", "a").command())
        assert group == {
            "brokerMemberGroup": {"brokerAddrs": {"0": "h:2", "1": "h:1"}, "brokerName": "a", "cluster": "c"}
        }
        await latter.leave()
        view = await request_json(pool, server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert view["brokerAddrTable"]["a"]["brokerAddrs"] == {"1": "h:1"}
        nobody = await request_json(pool, server, GetBrokerMemberGroup("c", "unknown").command())
        assert nobody["brokerMemberGroup"]["brokerAddrs"] == {}


async def test_registration_answer_names_master_address(tmp_path: Path) -> None:
    async with run_name_server(tmp_path) as (server, pool):
        await make_registration(pool, server, 0, "h:1", 7).announce()
        version = DataVersion(0, 0, 7)
        answer = await pool.request(
            server.address, register_command(RegisterBroker("c", "a", 2, "h:2"), version, []), 5.0
        )
        assert (answer.fields["masterAddr"], answer.fields["haServerAddr"]) == ("h:1", "h:99")


async def test_master_of_smaller_epoch_gets_fenced_epoch_code(tmp_path: Path) -> None:
    async with run_name_server(tmp_path) as (server, pool):
        await make_registration(pool, server, 0, "h:1", 7).announce()
        command = register_command(RegisterBroker("c", "a", 0, "h:2"), DataVersion(9, 9, 6), [topics_json(TOPICS)])
        with pytest.raises(FencedEpoch) as refused:
            await pool.request(server.address, command, 5.0)
        assert refused.value.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH.name
        await pool.request(server.address, UnregisterBroker("c", "a", 0, "h:2").command(), 5.0)
        assert server.table.view().masters == {"a": "h:1"}


async def test_route_cache_never_takes_replica_for_master(tmp_path: Path) -> None:
    async with run_name_server(tmp_path) as (server, pool):
        master = make_registration(pool, server, 0, "h:1", 7)
        await master.announce()
        await make_registration(pool, server, 2, "h:2", 7).announce()
        routes = RouteCache(pool, [server.address])
        assert (await routes.get("t")).addresses == {"a": "h:1"}
        await master.leave()
        assert (await routes.get("t", fresh=True)).addresses == {"a": "h:1"}, (
            "known before; nobody else is taken for it"
        )
        with pytest.raises(TopicUnavailable):
            await RouteCache(pool, [server.address]).get("t")
        await make_registration(pool, server, 0, "h:2", 8).announce()
        assert (await routes.get("t", fresh=True)).addresses == {"a": "h:2"}


def test_group_without_master_is_away_in_route() -> None:
    """Read a route of RocketMQ's name server, in which replicas have the topics, too."""
    queues = [{"brokerName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in ("a", "b")]
    brokers = [
        {"brokerName": "a", "cluster": "c", "brokerAddrs": {"1": "h:2"}},
        {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": "h:3", "1": "h:4"}},
    ]
    route = read_route("t", json.dumps({"queueDatas": queues, "brokerDatas": brokers}).encode())
    assert route.addresses == {"b": "h:3"}
    assert [each.data.broker for each in route.away] == ["a"]
