"""Name servers over sockets: their entries and settings, permissions, and brokers that know two of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.broker_service import BrokerService
from raymq.actors.name_server_service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec
from raymq.actors.wire import properties
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers import route as route_headers
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
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
