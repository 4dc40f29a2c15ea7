"""Who is a group's master at a name server: the broker of the larger epoch, whoever says it later; and who is none."""

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

TOPICS = {"t": QueueData("a", 2, 2)}


@pytest.fixture
def table(clock: FakeClock) -> Iterator[RouteTable]:
    made = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    yield made
    made.validate()


def lead(table: RouteTable, address: str, epoch: int) -> None:
    table.register("c", "a", 0, address, TOPICS, DataVersion(1, 1, epoch))


def follow(table: RouteTable, address: str, number: int, epoch: int = 0) -> None:
    table.register("c", "a", number, address, {}, DataVersion(0, 0, epoch))


def members(table: RouteTable) -> dict[int, str]:
    return table.member_group("c", "a")


def test_trap_13_of_two_masters_the_one_of_the_larger_epoch_is_believed_not_the_later_one(table: RouteTable) -> None:
    """apache/rocketmq #6316."""
    lead(table, "h:2", 8)
    with pytest.raises(FencedEpoch, match="epoch 8"):
        lead(table, "h:1", 7)
    assert table.route("t").addresses == {"a": "h:2"}
    lead(table, "h:1", 9)
    assert table.route("t").addresses == {"a": "h:1"}


def test_a_late_master_is_refused_though_its_successor_is_gone(table: RouteTable) -> None:
    lead(table, "h:2", 8)
    follow(table, "h:3", 3, 8)
    table.unregister("a", 0, "h:2")
    with pytest.raises(FencedEpoch):
        lead(table, "h:1", 7)
    assert members(table) == {3: "h:3"}
    table.unregister("a", 3, "h:3")
    lead(table, "h:1", 1)  # nobody of the group was left: it may have been founded anew


def test_a_heartbeat_of_a_former_master_does_not_keep_it(table: RouteTable) -> None:
    lead(table, "h:1", 7)
    lead(table, "h:2", 8)
    assert not table.heartbeat("a", 0, "h:1", DataVersion(1, 1, 7))
    assert not table.amend("a", 0, DataVersion(1, 1, 8), DataVersion(2, 2, 8), {}, ["t"], "h:1")
    assert table.heartbeat("a", 0, "h:2", DataVersion(1, 1, 8))


def test_the_same_master_in_a_new_epoch_has_to_register(table: RouteTable) -> None:
    lead(table, "h:1", 7)
    assert not table.heartbeat("a", 0, "h:1", DataVersion(1, 1, 8))
    assert not table.amend("a", 0, DataVersion(1, 1, 7), DataVersion(2, 2, 8), {}, [], "h:1")
    lead(table, "h:1", 8)
    assert table.heartbeat("a", 0, "h:1", DataVersion(1, 1, 8))


def test_brokers_of_one_copy_go_on_to_replace_each_other(table: RouteTable) -> None:
    lead(table, "h:1", 0)
    lead(table, "h:2", 0)
    assert table.route("t").addresses == {"a": "h:2"}


def test_a_master_that_registers_as_a_replica_leaves_the_masters_place(table: RouteTable) -> None:
    lead(table, "h:1", 7)
    follow(table, "h:2", 2, 7)
    follow(table, "h:1", 1, 7)
    assert members(table) == {1: "h:1", 2: "h:2"}
    assert table.view().masters == {}
    with pytest.raises(TopicUnavailable, match="a had it"):
        table.route("t")
    lead(table, "h:2", 8)
    assert members(table) == {0: "h:2", 1: "h:1"}
    assert table.route("t").addresses == {"a": "h:2"}


def test_who_changes_its_place_needs_no_room(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "MAX_REGISTRATIONS", 2)
    monkeypatch.setattr(name_server, "MAX_TOPICS", 1)
    lead(table, "h:1", 7)
    follow(table, "h:2", 2, 7)
    follow(table, "h:1", 1, 7)
    lead(table, "h:2", 8)
    assert members(table) == {0: "h:2", 1: "h:1"}


def test_the_end_of_one_replica_leaves_the_others(table: RouteTable) -> None:
    lead(table, "h:1", 7)
    follow(table, "h:2", 2)
    follow(table, "h:3", 3)
    table.unregister("a", 2, "h:2")
    assert members(table) == {0: "h:1", 3: "h:3"}
    table.unregister("a", 0, "h:1")
    assert members(table) == {3: "h:3"}


def test_a_former_master_that_leaves_does_not_take_its_successor_along(table: RouteTable) -> None:
    lead(table, "h:1", 7)
    lead(table, "h:2", 8)
    table.unregister("a", 0, "h:1")
    assert members(table) == {0: "h:2"}


def test_a_silent_master_leaves_its_place_and_its_replicas_stay(table: RouteTable, clock: FakeClock) -> None:
    lead(table, "h:1", 7)
    clock.advance(EXPIRY_SECONDS - 1.0)
    follow(table, "h:2", 2, 7)
    clock.advance(1.5)
    assert table.expire() == ["a"]
    assert members(table) == {2: "h:2"}
    with pytest.raises(TopicUnavailable):
        table.route("t")


def test_a_replica_that_has_told_its_topics_as_rocketmqs_do_keeps_the_group_in_the_routes(table: RouteTable) -> None:
    lead(table, "h:1", 7)
    table.register("c", "a", 1, "h:2", TOPICS, DataVersion(1, 1, 7))
    table.unregister("a", 0, "h:1")
    assert table.route("t").addresses == {"a": "h:2"}
    assert table.view().brokers == {"a": ("c", {1: "h:2"})}


class Told:
    """Topics that a broker tells of."""

    version = DataVersion(4, 5)

    def advertised_queues(self) -> dict[str, QueueData]:
        return TOPICS

    def changed_since(self, version: DataVersion) -> dict[str, QueueData | None] | None:
        return {} if version == self.version else None


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[tuple[NameServerService, ConnectionPool]]:
    server = await NameServerService.start(NameServerSpec(0, str(directory), "127.0.0.1", 0))
    pool = ConnectionPool()
    try:
        yield server, pool
    finally:
        await pool.close()
        await server.stop()


def registration(
    pool: ConnectionPool, server: NameServerService, number: int, address: str, epoch: int
) -> NameServerRegistration:
    return NameServerRegistration(
        pool, [server.address], "c", "a", address, Told(), broker_id=number, epoch=epoch, ha_address="h:99"
    )


async def json_of(pool: ConnectionPool, server: NameServerService, command: Command) -> Any:
    return json.loads(bytes((await pool.request(server.address, command, 5.0)).body))


async def test_on_the_wire_the_larger_epoch_has_key_0_and_without_a_master_there_is_none(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, pool):
        former, latter = registration(pool, server, 0, "h:1", 7), registration(pool, server, 0, "h:2", 8)
        await latter.announce()
        await former.announce()
        assert latter.troubles == {}
        assert "epoch 8" in former.troubles[server.address]
        await former.leave()
        replica = registration(pool, server, 1, "h:1", 8)
        await replica.announce()
        route = await json_of(pool, server, GetRouteInfo("t", True).command())
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "h:2", "1": "h:1"}
        group = await json_of(pool, server, GetBrokerMemberGroup("c", "a").command())
        assert group == {
            "brokerMemberGroup": {"brokerAddrs": {"0": "h:2", "1": "h:1"}, "brokerName": "a", "cluster": "c"}
        }
        await latter.leave()
        view = await json_of(pool, server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert view["brokerAddrTable"]["a"]["brokerAddrs"] == {"1": "h:1"}
        nobody = await json_of(pool, server, GetBrokerMemberGroup("c", "unknown").command())
        assert nobody["brokerMemberGroup"]["brokerAddrs"] == {}


async def test_a_replica_is_told_where_its_master_is(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, pool):
        await registration(pool, server, 0, "h:1", 7).announce()
        version = DataVersion(0, 0, 7)
        told = await pool.request(
            server.address, register_command(RegisterBroker("c", "a", 2, "h:2"), version, []), 5.0
        )
        assert (told.fields["masterAddr"], told.fields["haServerAddr"]) == ("h:1", "h:99")


async def test_a_foreign_master_of_a_smaller_epoch_is_answered_with_its_code(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, pool):
        await registration(pool, server, 0, "h:1", 7).announce()
        command = register_command(RegisterBroker("c", "a", 0, "h:2"), DataVersion(9, 9, 6), [topics_json(TOPICS)])
        with pytest.raises(FencedEpoch) as refused:
            await pool.request(server.address, command, 5.0)
        assert refused.value.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH.name
        await pool.request(server.address, UnregisterBroker("c", "a", 0, "h:2").command(), 5.0)
        assert server.table.view().masters == {"a": "h:1"}


async def test_our_clients_wait_for_a_master_and_send_nothing_to_other_replicas(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, pool):
        master = registration(pool, server, 0, "h:1", 7)
        await master.announce()
        await registration(pool, server, 2, "h:2", 7).announce()
        routes = RouteCache(pool, [server.address])
        assert (await routes.get("t")).addresses == {"a": "h:1"}
        await master.leave()
        assert (await routes.get("t", fresh=True)).addresses == {"a": "h:1"}, (
            "known before; nobody else is taken for it"
        )
        with pytest.raises(TopicUnavailable):
            await RouteCache(pool, [server.address]).get("t")
        await registration(pool, server, 0, "h:2", 8).announce()
        assert (await routes.get("t", fresh=True)).addresses == {"a": "h:2"}


def test_a_group_of_replicas_alone_is_away_to_our_clients() -> None:
    """What a name server of RocketMQ tells: its replicas have the topics, too."""
    queues = [{"brokerName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in ("a", "b")]
    brokers = [
        {"brokerName": "a", "cluster": "c", "brokerAddrs": {"1": "h:2"}},
        {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": "h:3", "1": "h:4"}},
    ]
    route = read_route("t", json.dumps({"queueDatas": queues, "brokerDatas": brokers}).encode())
    assert route.addresses == {"b": "h:3"}
    assert [each.data.broker for each in route.away] == ["a"]
