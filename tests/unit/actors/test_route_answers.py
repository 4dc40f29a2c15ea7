"""Test that a malformed answer of a name server raises only ProtocolError."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from raymq.actors.errors import ProtocolError, TopicNotFound
from raymq.actors.protocol import ClusterView, QueueData, TopicRoute
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.commands.route_answers import (
    MAX_ROUTE_BROKERS,
    MAX_ROUTE_QUEUES,
    read_route,
    read_topics,
    read_view,
)
from raymq.actors.wire.frame import Command

ABSENT = object()
QUEUES = {"brokerName": "broker-a", "readQueueNums": 4, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
BROKER = {"brokerName": "broker-a", "cluster": "c", "brokerAddrs": {"1": "h:2", "0": "h:1"}}

#: Bodies that are not the expected JSON object.
NO_OBJECTS: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"\xff\xfe{",
    "cut off": b'{"queueDatas":[',
    "list": b"[]",
    "null": b"null",
    "number": b"5",
    "deep": b"[" * 100_000,
    "empty": b"{}",
    "nulls": b'{"queueDatas":null,"brokerDatas":null,"brokerAddrTable":null,"topicList":null}',
    "numbers": b'{"queueDatas":5,"brokerDatas":7,"brokerAddrTable":1,"topicList":2}',
    "lists of null": b'{"queueDatas":[null],"brokerDatas":[null],"brokerAddrTable":{"a":null},"topicList":[null]}',
    "texts": b'{"queueDatas":"a","brokerDatas":"b","brokerAddrTable":"c","topicList":"d"}',
    "a number of 5,000 digits": b'{"queueDatas":%b,"brokerDatas":[]}' % (b"9" * 5000),
}
NO_NUMBERS = ["4", None, ABSENT, True, 1.0, -1, 2**31 - 1, 2**70, [], {}, float("nan")]
NO_TEXTS = [None, ABSENT, 5, "", [], {}, True, "a\0b:5", "\ud800:5", "a\nb", "a" * 600]
NO_ADDRESSES: list[Any] = [None, ABSENT, 5, [], "h:1", {"x": "h:1"}, {"-1": "h:1"}, {"": "h:1"}, {"9" * 5000: "h:1"}]


def with_field(told: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    return {name: v for name, v in (told | {field: value}).items() if v is not ABSENT}


def body(queues: list[Any], brokers: list[Any]) -> bytes:
    return json.dumps({"queueDatas": queues, "brokerDatas": brokers, "filterServerTable": {}}).encode()


def test_route_is_read() -> None:
    expected = TopicRoute("t", (QueueData("broker-a", 4, 2, 6),), {"broker-a": "h:1"})
    assert read_route("t", body([QUEUES], [BROKER])) == expected
    assert read_route("t", b'{"queueDatas":[],"brokerDatas":[]}') == TopicRoute("t", (), {})


def test_route_has_body_limits_of_brokers() -> None:
    told = b"""{"queueDatas":[],"brokerDatas":[
        {"brokerName":"a","brokerAddrs":{"0":"h:1"},"raymqMaxMessageBytes":1024},
        {"brokerName":"b","brokerAddrs":{"0":"h:2"},"raymqMaxMessageBytes":4096},
        {"brokerName":"old","brokerAddrs":{"0":"h:3"}}]}"""
    route = read_route("t", told)
    assert [route.max_body_bytes(broker) for broker in (None, "a", "b", "old")] == [1024, 1024, 4096, None]
    assert TopicRoute("t", (), {"old": "h:3"}).max_body_bytes() is None
    for wrong in (b"-1", b'"1024"', b"2147483648", b"1.5", b"true"):
        with pytest.raises(ProtocolError):
            read_route("t", told.replace(b"4096", wrong))


def test_queues_without_address_are_omitted() -> None:
    nowhere = BROKER | {"brokerName": "broker-b", "brokerAddrs": {}}
    found = read_route("t", body([QUEUES | {"brokerName": "broker-b"}, QUEUES], [BROKER, nowhere]))
    assert [queue.broker for queue in found.writable()] == ["broker-a"] * 2
    assert found.addresses == {"broker-a": "h:1"}
    with pytest.raises(ProtocolError, match="address"):
        read_route("t", body([QUEUES | {"brokerName": "broker-b"}], [nowhere]))


def test_cluster_view_and_topics_are_read() -> None:
    table = {"brokerAddrTable": {"broker-a": BROKER}, "clusterAddrTable": {"c": ["broker-a"]}}
    assert read_view(json.dumps(table).encode()) == ClusterView({"broker-a": ("c", {0: "h:1", 1: "h:2"})})
    assert read_topics(b'{"topicList":["u","t"]}') == ["t", "u"]


@pytest.mark.parametrize("told", NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_malformed_body_raises_protocol_error(told: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_route("t", told)
    with pytest.raises(ProtocolError):
        read_view(told)
    with pytest.raises(ProtocolError):
        read_topics(told)


@pytest.mark.parametrize("field", ["readQueueNums", "writeQueueNums", "perm"])
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: "absent" if value is ABSENT else repr(value))
def test_queue_numbers_are_checked(field: str, value: Any) -> None:
    is_json = not (isinstance(value, float) and math.isnan(value))
    with pytest.raises(ProtocolError, match=field if is_json else "JSON"):
        read_route("t", body([with_field(QUEUES, field, value)], [BROKER]))


@pytest.mark.parametrize("value", NO_TEXTS, ids=lambda value: repr(value)[:20])
def test_names_and_addresses_are_checked(value: Any) -> None:
    for queues, broker in [
        (with_field(QUEUES, "brokerName", value), BROKER),
        (QUEUES, with_field(BROKER, "brokerName", value)),
        (QUEUES, with_field(BROKER, "brokerAddrs", with_field({}, "0", value if value is not ABSENT else None))),
    ]:
        with pytest.raises(ProtocolError):
            read_route("t", body([queues], [broker]))
    with pytest.raises(ProtocolError):
        read_view(json.dumps({"brokerAddrTable": {"broker-a": with_field(BROKER, "cluster", value)}}).encode())


@pytest.mark.parametrize("value", NO_ADDRESSES, ids=lambda value: repr(value)[:20])
def test_broker_ids_are_checked(value: Any) -> None:
    broker = with_field(BROKER, "brokerAddrs", value)
    with pytest.raises(ProtocolError):
        read_route("t", body([QUEUES], [broker]))
    with pytest.raises(ProtocolError):
        read_view(json.dumps({"brokerAddrTable": {"broker-a": broker}}).encode())


def test_route_queues_and_brokers_are_bounded() -> None:
    half = {"readQueueNums": MAX_ROUTE_QUEUES // 2, "writeQueueNums": 1}
    other = {"brokerName": "broker-b"}
    found = read_route("t", body([QUEUES | half, QUEUES | half | other], [BROKER, BROKER | other]))
    assert sum(data.read_queues for data in found.queues) == MAX_ROUTE_QUEUES
    with pytest.raises(ProtocolError, match="queues"):
        read_route("t", body([QUEUES | half, QUEUES | other | half, QUEUES | {"brokerName": "c"}], [BROKER]))
    with pytest.raises(ProtocolError, match="twice"):
        read_route("t", body([QUEUES, QUEUES], [BROKER]))
    with pytest.raises(ProtocolError, match="brokerDatas"):
        read_route("t", body([], [BROKER] * (MAX_ROUTE_BROKERS + 1)))


def test_known_route_is_kept_on_malformed_answer() -> None:
    answers = [body([QUEUES], [BROKER]), b"null"]

    class Pool:
        """Give the prepared answers in turn."""

        async def request(self, *_: Any, **__: Any) -> Command:
            return Command(ResponseCode.SUCCESS, body=answers.pop(0))

        def retry_now(self, address: str) -> None:
            assert address == "h:1"

    async def ask_twice() -> tuple[TopicRoute, TopicRoute]:
        routes = RouteCache(Pool(), ["ns:1"])  # type: ignore[arg-type]
        return await routes.get("t"), await routes.get("t", fresh=True)

    first, second = asyncio.run(ask_twice())
    assert first is second
    assert not answers


def test_broker_back_in_route_is_retried_at_once() -> None:
    answers: list[Command | TopicNotFound] = [
        Command(ResponseCode.SUCCESS, body=body([QUEUES], [BROKER])),
        TopicNotFound("t"),
        Command(ResponseCode.SUCCESS, body=body([QUEUES], [BROKER])),
        Command(ResponseCode.SUCCESS, body=body([QUEUES], [BROKER])),
    ]
    tried: list[str] = []

    class Pool:
        """Stand in for a restarted name server that does not know the broker yet."""

        async def request(self, *_: Any, **__: Any) -> Command:
            answer = answers.pop(0)
            if isinstance(answer, TopicNotFound):
                raise answer
            return answer

        def retry_now(self, address: str) -> None:
            tried.append(address)

    async def ask() -> None:
        routes = RouteCache(Pool(), ["ns:1"])  # type: ignore[arg-type]
        while answers:
            await routes.get("t", fresh=True)

    asyncio.run(ask())
    assert tried == ["h:1"] * 2, "when it was seen first, and when it was back"
