"""Name servers over sockets: their entries and settings, permissions, and brokers that know two of them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.service import BrokerService
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
from tests.integration.foreign import Foreign
from tests.polling import poll_until


@pytest.fixture
def name_server(services: Services) -> Iterator[Foreign]:
    with Foreign(services.name_server.address) as made:
        yield made


def test_entries_and_settings_of_a_name_server(services: Services, admin: Admin, name_server: Foreign) -> None:
    order = route_headers.PutKeyValue("ORDER_TOPIC_CONFIG", "t", "broker-a:2")
    name_server.done(order)
    asked = route_headers.GetKeyValue("ORDER_TOPIC_CONFIG", "t")
    assert name_server.done(asked).fields["value"] == "broker-a:2"
    assert name_server.json(route_headers.GetKeyValues("ORDER_TOPIC_CONFIG"))["table"] == {"t": "broker-a:2"}
    assert "orderTopicConf" not in name_server.json(route_headers.GetRouteInfo("t"))
    name_server.done(Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n"))
    assert name_server.json(route_headers.GetRouteInfo("t"))["orderTopicConf"] == "broker-a:2"
    name_server.done(route_headers.DeleteKeyValue("ORDER_TOPIC_CONFIG", "t"))
    name_server.done(route_headers.DeleteKeyValue("ORDER_TOPIC_CONFIG", "t"))
    assert name_server.refused(asked) == ResponseCode.QUERY_NOT_FOUND
    settings = properties.read(name_server.done(Command(RequestCode.GET_NAMESRV_CONFIG)).body)
    assert settings["listenPort"] == services.name_server.address.rpartition(":")[2]
    assert settings["orderMessageEnable"] == "true"
    bad = Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=perhaps\n")
    assert name_server.refused(bad) == ResponseCode.INVALID_PARAMETER


def test_nobody_names_files_that_a_name_server_opens(name_server: Foreign, tmp_path: Path) -> None:
    """It opened those of the register's etcd, on its loop: of one that is a pipe it waited for the end, for good."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    told = {"endpoints": ["http://127.0.0.1:1"], "prefix": "/x", "tls": {"ca_file": str(pipe)}}
    entry = route_headers.PutKeyValue(REGISTER, "etcd", json.dumps(told))
    assert name_server.refused(entry) == ResponseCode.INVALID_PARAMETER
    assert name_server.refused(route_headers.DeleteKeyValue(REGISTER, "etcd")) == ResponseCode.INVALID_PARAMETER
    name_server.done(replace(entry, namespace=KEEPERS))
    assert name_server.refused(GetReplicaInfo("broker-a")) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    name_server.done(Command(RequestCode.STATUS))


def test_write_permission_is_wiped_and_given_back(admin: Admin, name_server: Foreign) -> None:
    def perms() -> dict[str, int]:
        route = name_server.json(route_headers.GetRouteInfo("t"))
        return {data["brokerName"]: data["perm"] for data in route["queueDatas"]}

    assert int(name_server.done(route_headers.WipeWritePermission("broker-a")).fields["wipeTopicCount"]) > 0
    assert perms() == {"broker-a": 4, "broker-b": 6}
    admin.create_topic("another", queues=1)  # its registrations change nothing
    assert perms() == {"broker-a": 4, "broker-b": 6}
    assert int(name_server.done(route_headers.AddWritePermission("broker-a")).fields["addTopicCount"]) > 0
    assert perms() == {"broker-a": 6, "broker-b": 6}


class Pair:
    """Two name servers of which each can be stopped and started, a broker that knows both, and a client of both."""

    def __init__(self, services: Services, directory: Path) -> None:
        self._run = services.loop.run
        self._directory = str(directory)
        self.servers: dict[int, NameServerService] = {}
        addresses = tuple(self.start(index) for index in (1, 2))
        spec = BrokerSpec("broker-x", "test", f"{directory}/x", "127.0.0.1", addresses)
        self.broker = self._run(BrokerService.start(spec, "node"))
        self.mq = Connection(addresses)

    def start(self, index: int) -> str:
        spec = NameServerSpec(index, self._directory, "127.0.0.1", 0)
        self.servers[index] = self._run(NameServerService.start(spec))
        return self.servers[index].address

    def stop(self, index: int) -> None:
        self._run(self.servers.pop(index).stop())

    def knows(self, index: int, topic: str) -> bool:
        with Foreign(self.servers[index].address) as peer:
            return peer.ask(route_headers.GetRouteInfo(topic).command()).code == ResponseCode.SUCCESS

    def close(self) -> None:
        self.mq.close()
        self._run(self.broker.stop())
        for index in list(self.servers):
            self.stop(index)


@pytest.fixture
def pair(services: Services, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(services, tmp_path / "pair")
    yield made
    made.close()


def test_the_death_of_a_name_server_is_invisible(pair: Pair) -> None:
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


def test_a_change_reaches_both_and_a_wrong_table_is_put_right(pair: Pair) -> None:
    admin = Admin(pair.mq)
    admin.create_topic("t", queues=1)
    with Foreign(pair.servers[1].address) as peer:
        peer.done(route_headers.DeleteTopicInNameServer("t", "test"))
    poll_until(lambda: pair.knows(1, "t"), 3.0, "the broker, which still has it, says so")
    admin.delete_topic("t")
    assert not pair.knows(1, "t")
    assert not pair.knows(2, "t")


@pytest.fixture
def young(monkeypatch: pytest.MonkeyPatch) -> list[RouteTable]:
    """Name servers' tables that have not heard from the brokers yet, as after a start."""
    tables: list[RouteTable] = []
    route = RouteTable.route

    def of_the_old(table: RouteTable, topic: str) -> TopicRoute:
        if any(table is each for each in tables):
            raise ServerBusy("the name server has just started")
        return route(table, topic)

    monkeypatch.setattr(RouteTable, "route", of_the_old)
    return tables


def test_a_name_server_that_has_just_started_is_waited_for(
    services: Services, mq: Connection, admin: Admin, young: list[RouteTable]
) -> None:
    del admin
    young.append(services.name_server.table)
    with Connection([services.name_server.address]) as fresh, Producer(fresh, "p", timeout=1.0) as producer:
        began = time.monotonic()
        with pytest.raises(NotStored) as caught:
            producer.send(Message("t", b"x"))
        assert time.monotonic() - began > 0.7, "all of the budget, not the share of a try"
        assert {(attempt.broker, attempt.code) for attempt in caught.value.attempts} == {(None, "SYSTEM_BUSY")}
        waiting = producer.send_async(Message("t", b"x"), timeout=10.0, retries=0)
        assert not waiting.done()
        young.clear()
        assert waiting.result(10).queue_offset == 0


def test_one_that_knows_is_asked_instead(pair: Pair, young: list[RouteTable]) -> None:
    Admin(pair.mq).create_topic("t", queues=1)
    young.append(pair.servers[1].table)
    with Producer(pair.mq, "p", timeout=2.0) as producer:
        assert producer.send(Message("t", b"x")).queue_offset == 0


def test_a_known_route_serves_while_nobody_knows_better(
    services: Services, mq: Connection, admin: Admin, young: list[RouteTable]
) -> None:
    del admin
    with Producer(mq, "p", timeout=2.0) as producer:
        producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0))
        young.append(services.name_server.table)
        services.stop_broker("broker-a")
        assert {producer.send(Message("t", b"x")).queue.broker for _ in range(4)} == {"broker-b"}


def test_a_broker_that_comes_back_is_soon_found(services: Services, mq: Connection, admin: Admin) -> None:
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


def test_one_that_was_the_first_at_another_address_gives_the_port_back(tmp_path: Path) -> None:
    """Of two machines with the port that was asked for one is gone: the second name server came back to the port that
    it had kept, which is the first one's where both are now, and the cluster did not start.
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
