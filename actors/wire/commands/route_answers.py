"""Checked reading of a name server's answers by its clients.

For any body the result is a value of the right types and of bounded size, or a ProtocolError.
"""

from __future__ import annotations

from typing import Any, Final

from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.protocol import MASTER_ID, ClusterView, QueueData, RecentlyLeftQueues, TopicRoute
from raymq.actors.wire import json_body
from raymq.actors.wire.frame import Buffer

#: The most queues of a topic on all brokers, since clients create objects for all of them: 128 brokers with the most
#: queues that RayMQ allows on each.
MAX_ROUTE_QUEUES: Final = 128 * 1024
#: The most brokers in an answer of a name server.
MAX_ROUTE_BROKERS: Final = 10_000
#: RocketMQ's four bits: read, write, inherit, priority.
MAX_ROUTE_PERM: Final = 15
#: Ours, for each broker in a route if the request asks for it: the longest body that the broker accepts.
BODY_LIMIT: Final = "raymqMaxMessageBytes"
#: Ours, if the request asks for it: the queues on brokers that have left the routes, as in queueDatas, and for how long
#: they have been away.
AWAY: Final = "raymqAway"
AWAY_FOR: Final = "awaySeconds"
#: A body's length is an i4 in its record.
_MAX_BODY_LIMIT: Final = 0x7FFFFFFF
#: The longest name and address of a broker, in characters.
_MAX_NAME: Final = 512
#: Replica ids are Java's long.
_MAX_ID_DIGITS: Final = 18


def read_route(topic: str, body: Buffer) -> TopicRoute:
    """Return the route in an answer to GET_ROUTEINFO_BY_TOPIC.

    Queues of a broker without an address are left out, as by RocketMQ's clients, because no request could reach them. A
    group that has other replicas but no master at the moment counts as away: it is about to elect one.

    Raises:
        ProtocolError: the body is no route, or has more queues or brokers than a client accepts.
    """
    route_data = _object(body)
    addresses: dict[str, str] = {}
    limits: dict[str, int] = {}
    without_master: set[str] = set()
    for broker in _brokers(route_data, "brokerDatas", list):
        if replicas := _replicas(broker):
            name = _text(broker, "brokerName")
            if MASTER_ID not in replicas:
                without_master.add(name)
                continue
            addresses[name] = replicas[MASTER_ID]
            if BODY_LIMIT in broker:
                limits[name] = _number(broker, BODY_LIMIT, _MAX_BODY_LIMIT)
    there = _brokers(route_data, "queueDatas", list)
    away = _brokers(route_data, AWAY, list) if AWAY in route_data else []
    queues = _queues(topic, [*there, *away])
    if there and not addresses and not without_master:
        raise ProtocolError(f"no broker in the route of {topic} has an address")
    since = {_text(data, "brokerName"): _number(data, AWAY_FOR, _MAX_BODY_LIMIT) for data in away}
    since |= dict.fromkeys(without_master & queues.keys() - since.keys(), 0)
    return TopicRoute(
        topic,
        tuple(data for name, data in queues.items() if name in addresses and name not in since),
        addresses,
        limits,
        tuple(RecentlyLeftQueues(queues[name], seconds) for name, seconds in since.items() if name not in addresses),
    )


def _queues(topic: str, items: list[dict[str, Any]]) -> dict[str, QueueData]:
    """Return the queues on each broker."""
    queues: dict[str, QueueData] = {}
    reads = writes = 0
    for data in items:
        name = _text(data, "brokerName")
        if name in queues:
            raise ProtocolError(f"the route of {topic} has the queues of {name} twice")
        read, write = (_number(data, field, MAX_ROUTE_QUEUES) for field in ("readQueueNums", "writeQueueNums"))
        reads, writes = reads + read, writes + write
        if max(reads, writes) > MAX_ROUTE_QUEUES:
            raise ProtocolError(f"the route of {topic} has more than {MAX_ROUTE_QUEUES} queues")
        queues[name] = QueueData(name, read, write, _number(data, "perm", MAX_ROUTE_PERM))
    return queues


def read_view(body: Buffer) -> ClusterView:
    """Return the cluster in an answer to GET_BROKER_CLUSTER_INFO.

    Raises:
        ProtocolError: the body is no cluster, or has more brokers than a client accepts.
    """
    table = _brokers(_object(body), "brokerAddrTable", dict)
    return ClusterView({name: (_text(item, "cluster"), _replicas(item)) for name, item in sorted(table.items())})


def read_topics(body: Buffer) -> list[str]:
    """Return the sorted topics in an answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER.

    Raises:
        ProtocolError: the body is invalid.
    """
    topics = _object(body).get("topicList")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise ProtocolError("a name server's answer has no topicList")
    return sorted(topics)


def _object(body: Buffer) -> dict[str, Any]:
    try:
        return json_body.read_answer(body)
    except InvalidInput as error:
        raise ProtocolError(f"a name server's answer is not JSON: {error}") from error


def _brokers(data: dict[str, Any], field: str, kind: type) -> Any:
    """Return a field's list or object after checking that it has an object per broker."""
    found: Any = data.get(field)
    if not issubclass(type(found), kind):
        raise ProtocolError(f"a name server's answer has no {field}")
    if len(found) > MAX_ROUTE_BROKERS:
        raise ProtocolError(f"a name server lists {len(found)} brokers, more than {MAX_ROUTE_BROKERS}")
    items = found.values() if isinstance(found, dict) else found
    if not all(isinstance(item, dict) for item in items):
        raise ProtocolError(f"a name server's answer has no object for each broker in {field}")
    return found


def _replicas(broker: dict[str, Any]) -> dict[int, str]:
    """Return the addresses of a broker's replicas by their ids."""
    addresses = broker.get("brokerAddrs")
    if not isinstance(addresses, dict):
        raise ProtocolError("a name server lists a broker without brokerAddrs")
    for replica in addresses:
        if not (replica.isascii() and replica.isdecimal() and len(replica) <= _MAX_ID_DIGITS):
            raise ProtocolError(f"{replica[:_MAX_NAME]!r} is not a broker id")
    return {int(replica): _text(addresses, replica) for replica in addresses}


def _text(data: dict[str, Any], field: str) -> str:
    """Return a name or an address.

    It is printable, so it has neither NUL nor halves of surrogate pairs.
    """
    value = data.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME or not value.isprintable():
        raise ProtocolError(f"a name server's answer has no text as {field}")
    return value


def _number(data: dict[str, Any], field: str, most: int) -> int:
    value = data.get(field)
    if type(value) is not int or not 0 <= value <= most:
        raise ProtocolError(f"a name server's answer has no number from 0 to {most} as {field}")
    return value
