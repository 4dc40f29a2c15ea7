"""Test name servers over sockets: key-value entries, settings, permissions and failover."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.errors import NotStored, ServerBusy
from raymq.actors.names.route_table import RouteTable
from raymq.actors.names.service import NameServerService
from raymq.actors.ports import bind_persistent_port
from raymq.actors.protocol import BrokerSpec, NameServerSpec, TopicRoute
from raymq.actors.wire import java_properties as properties
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.keeper_commands import KEEPERS, REGISTER
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers import route_headers
from raymq.actors.wire.headers.controller_headers import GetReplicaInfo
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.cluster.replica_placement import name_server_ports
from tests.integration.conftest import Services
from tests.integration.foreign_client import ForeignClient
from tests.leading import start_leader
from tests.polling import poll_until


@pytest.fixture
def name_server(services: Services) -> Iterator[ForeignClient]:
    with ForeignClient(services.name_server.address) as made:
        yield made


def test_name_server_stores_entries_and_settings(services: Services, admin: Admin, name_server: ForeignClient) -> None:
    order = route_headers.PutKeyValue("ORDER_TOPIC_CONFIG", "t", "broker-a:2")
    name_server.done(order)
    lookup = route_headers.GetKeyValue("ORDER_TOPIC_CONFIG", "t")
    assert name_server.done(lookup).fields["value"] == "broker-a:2"
    assert name_server.json(route_headers.GetKeyValues("ORDER_TOPIC_CONFIG"))["table"] == {"t": "broker-a:2"}
    assert "orderTopicConf" not in name_server.json(route_headers.GetRouteInfo("t"))
    name_server.done(Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n"))
    assert name_server.json(route_headers.GetRouteInfo("t"))["orderTopicConf"] == "broker-a:2"
    name_server.done(route_headers.DeleteKeyValue("ORDER_TOPIC_CONFIG", "t"))
    name_server.done(route_headers.DeleteKeyValue("ORDER_TOPIC_CONFIG", "t"))
    assert name_server.refused(lookup) == ResponseCode.QUERY_NOT_FOUND
    settings = properties.read(name_server.done(Command(RequestCode.GET_NAMESRV_CONFIG)).body)
    assert settings["listenPort"] == services.name_server.address.rpartition(":")[2]
    assert settings["orderMessageEnable"] == "true"
    bad = Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=perhaps\n")
    assert name_server.refused(bad) == ResponseCode.INVALID_PARAMETER


def test_register_entry_cannot_name_files_to_open(name_server: ForeignClient, tmp_path: Path) -> None:
    """Cover a regression: opening a pipe named as etcd CA file blocked the event loop."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    etcd_settings = {"endpoints": ["http://127.0.0.1:1"], "prefix": "/x", "tls": {"ca_file": str(pipe)}}
    entry = route_headers.PutKeyValue(REGISTER, "etcd", json.dumps(etcd_settings))
    assert name_server.refused(entry) == ResponseCode.INVALID_PARAMETER
    assert name_server.refused(route_headers.DeleteKeyValue(REGISTER, "etcd")) == ResponseCode.INVALID_PARAMETER
    name_server.done(replace(entry, namespace=KEEPERS))
    assert name_server.refused(GetReplicaInfo("broker-a")) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    name_server.done(Command(RequestCode.STATUS))


def test_write_permission_is_wiped_and_restored(admin: Admin, name_server: ForeignClient) -> None:
    def perms() -> dict[str, int]:
        route = name_server.json(route_headers.GetRouteInfo("t"))
        return {data["brokerName"]: data["perm"] for data in route["queueDatas"]}

    assert int(name_server.done(route_headers.WipeWritePermission("broker-a")).fields["wipeTopicCount"]) > 0
    assert perms() == {"broker-a": 4, "broker-b": 6}
    admin.create_topic("another", queues=1)  # its registration changes no permission
    assert perms() == {"broker-a": 4, "broker-b": 6}
    assert int(name_server.done(route_headers.AddWritePermission("broker-a")).fields["addTopicCount"]) > 0
    assert perms() == {"broker-a": 6, "broker-b": 6}


class NameServerPair:
    """Run two name servers, a broker registered at both and a client of both."""

    def __init__(self, services: Services, directory: Path) -> None:
        self._run = services.loop.run
        self._directory = str(directory)
        self.servers: dict[int, NameServerService] = {}
        addresses = tuple(self.start(index) for index in (1, 2))
        spec = BrokerSpec("broker-x", "test", f"{directory}/x", "127.0.0.1", addresses)
        self.broker = self._run(start_leader(spec, "node"))
        self.mq = Connection(addresses)

    def start(self, index: int) -> str:
        spec = NameServerSpec(index, self._directory, "127.0.0.1", 0)
        self.servers[index] = self._run(NameServerService.start(spec))
        return self.servers[index].address

    def stop(self, index: int) -> None:
        self._run(self.servers.pop(index).stop())

    def knows(self, index: int, topic: str) -> bool:
        with ForeignClient(self.servers[index].address) as peer:
            return peer.ask(route_headers.GetRouteInfo(topic).command()).code == ResponseCode.SUCCESS

    def close(self) -> None:
        self.mq.close()
        self._run(self.broker.stop())
        for index in list(self.servers):
            self.stop(index)


@pytest.fixture
def pair(services: Services, tmp_path: Path) -> Iterator[NameServerPair]:
    made = NameServerPair(services, tmp_path / "pair")
    yield made
    made.close()


def test_client_survives_death_of_name_server(pair: NameServerPair) -> None:
    admin = Admin(pair.mq)
    admin.create_topic("before", queues=1)
    assert pair.knows(1, "before")
    assert pair.knows(2, "before")
    pair.stop(1)
    admin.create_topic("after", queues=1)
    with Producer(pair.mq, "p") as producer:
        for topic in ("before", "after"):
            assert producer.send(Message(topic, b"x")).queue == MessageQueue(topic, "broker-x", 0)
    assert admin.topics() == ["after", "before"]
    pair.start(1)
    poll_until(lambda: pair.knows(1, "after"), 3.0, "the one that came back knows all again")
    pair.stop(2)
    assert admin.topics() == ["after", "before"]


def test_changes_reach_both_name_servers_and_repair_routes(pair: NameServerPair) -> None:
    admin = Admin(pair.mq)
    admin.create_topic("t", queues=1)
    with ForeignClient(pair.servers[1].address) as peer:
        peer.done(route_headers.DeleteTopicInNameServer("t", "test"))
    poll_until(lambda: pair.knows(1, "t"), 3.0, "the broker, which still has it, says so")
    admin.delete_topic("t")
    assert not pair.knows(1, "t")
    assert not pair.knows(2, "t")


@pytest.fixture
def starting_tables(monkeypatch: pytest.MonkeyPatch) -> list[RouteTable]:
    """Return a list; route tables in it act as if just started."""
    tables: list[RouteTable] = []
    route = RouteTable.route

    def route_unless_starting(table: RouteTable, topic: str) -> TopicRoute:
        if any(table is each for each in tables):
            raise ServerBusy("the name server has just started")
        return route(table, topic)

    monkeypatch.setattr(RouteTable, "route", route_unless_starting)
    return tables


def test_producer_waits_for_starting_name_server(
    services: Services, mq: Connection, admin: Admin, starting_tables: list[RouteTable]
) -> None:
    del admin
    starting_tables.append(services.name_server.table)
    with Connection([services.name_server.address]) as fresh, Producer(fresh, "p", timeout=1.0) as producer:
        began = time.monotonic()
        with pytest.raises(NotStored) as caught:
            producer.send(Message("t", b"x"))
        assert time.monotonic() - began > 0.7, "all of the budget, not the share of a try"
        assert {(attempt.broker, attempt.code) for attempt in caught.value.attempts} == {(None, "SYSTEM_BUSY")}
        waiting = producer.send_async(Message("t", b"x"), timeout=10.0, retries=0)
        assert not waiting.done()
        starting_tables.clear()
        assert waiting.result(10).queue_offset == 0


def test_client_falls_back_from_starting_name_server(pair: NameServerPair, starting_tables: list[RouteTable]) -> None:
    Admin(pair.mq).create_topic("t", queues=1)
    starting_tables.append(pair.servers[1].table)
    with Producer(pair.mq, "p", timeout=2.0) as producer:
        assert producer.send(Message("t", b"x")).queue_offset == 0


def test_cached_route_serves_while_name_server_starts(
    services: Services, mq: Connection, admin: Admin, starting_tables: list[RouteTable]
) -> None:
    del admin
    with Producer(mq, "p", timeout=2.0) as producer:
        producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0))
        starting_tables.append(services.name_server.table)
        services.stop_broker("broker-a")
        assert {producer.send(Message("t", b"x")).queue.broker for _ in range(4)} == {"broker-b"}


def test_restarted_broker_is_found_before_route_expires(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p") as producer:

        def brokers() -> set[str]:
            return {producer.send(Message("t", b"x")).queue.broker for _ in range(4)}

        assert brokers() == {"broker-a", "broker-b"}
        services.stop_broker("broker-a")
        assert brokers() == {"broker-b"}
        assert mq.routes._cached["t"][1].addresses.keys() == {"broker-b"}
        services.start_broker("broker-a")
        poll_until(lambda: "broker-a" in brokers(), 10.0, "long before a route is old")


def test_second_name_server_yields_requested_port_to_first(tmp_path: Path) -> None:
    """Cover a regression: after a change of hosts both name servers used the requested port.

    Two name servers had the requested port on two machines. Restarted on one machine, the second returned to its saved
    port, which is the first one's, and the cluster did not start.
    """
    with bind_persistent_port("127.0.0.1", 0) as free:
        port = free.getsockname()[1]

    async def addresses(*hosts: str) -> list[str]:
        ports = name_server_ports(hosts, port)
        started: list[NameServerService] = []
        try:
            for index, host in enumerate(hosts):
                spec = NameServerSpec(index, str(tmp_path), host, ports[index], {"port": port})
                started.append(await NameServerService.start(spec))
            return [each.address for each in started]
        finally:
            for each in started:
                await each.stop()

    assert asyncio.run(addresses("127.0.0.1", "127.0.0.2")) == [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
    first, second = asyncio.run(addresses("127.0.0.1", "127.0.0.1"))
    assert first == f"127.0.0.1:{port}" != second
    assert asyncio.run(addresses("127.0.0.1", "127.0.0.1")) == [first, second]
