"""Checked reading of a name server's answers by its clients.

For any body the result is a value of the right types and of bounded size, or a ProtocolError.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct

from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.protocol import MASTER_ID, ClusterView, QueueData, RecentlyLeftQueues, TopicRoute
from raymq.actors.wire import json_body
from raymq.actors.wire.frame import MAX_FRAME_BYTES, Buffer

#: The most queues of a topic on all brokers, since clients create objects for all of them: 128 brokers with the most
#: queues that RayMQ allows on each.
MAX_ROUTE_QUEUES: Final = 128 * 1024
#: The most brokers in an answer of a name server.
MAX_ROUTE_BROKERS: Final = 10_000
#: RocketMQ's four bits: read, write, inherit, priority.
MAX_ROUTE_PERM: Final = 15
#: Ours, for each broker in a route if the request asks for it: the longest body that the broker accepts.
BODY_LIMIT: Final = "raymqMaxMessageBytes"
#: Ours, if the request asks for it. In a route: the queues on brokers that have left the routes, as in queueDatas, and
#: for how long they have been away. In the cluster: these brokers' addresses by name.
AWAY: Final = "raymqAway"
AWAY_FOR: Final = "awaySeconds"
#: A body's length is an i4 in its record.
_MAX_BODY_LIMIT: Final = 0x7FFFFFFF
#: The longest name and address of a broker, in characters.
_MAX_NAME: Final = 512
#: Replica ids are Java's long.
_MAX_ID: Final = 10**18 - 1

T = TypeVar("T")
_Count = Annotated[int, Meta(ge=0, le=MAX_ROUTE_QUEUES)]
_Limit = Annotated[int, Meta(ge=0, le=_MAX_BODY_LIMIT)]
#: A name or an address: printable, so it has no NUL.
_Name = Annotated[str, Meta(min_length=1, max_length=_MAX_NAME, pattern=r"^[^\x00-\x1f\x7f-\xa0\u2028\u2029]*\Z")]
_Addresses = dict[Annotated[int, Meta(ge=0, le=_MAX_ID)], _Name]


class _Queues(Struct, rename="camel"):
    broker_name: _Name
    read_queue_nums: _Count
    write_queue_nums: _Count
    perm: Annotated[int, Meta(ge=0, le=MAX_ROUTE_PERM)]


class _QueuesAway(_Queues, rename="camel"):
    away_seconds: _Limit


class _Broker(Struct, rename="camel"):
    broker_name: _Name
    broker_addrs: _Addresses
    raymq_max_message_bytes: _Limit | None = None


class _Route(Struct, rename="camel"):
    broker_datas: Annotated[list[_Broker], Meta(max_length=MAX_ROUTE_BROKERS)]
    queue_datas: Annotated[list[_Queues], Meta(max_length=MAX_ROUTE_BROKERS)]
    raymq_away: Annotated[list[_QueuesAway], Meta(max_length=MAX_ROUTE_BROKERS)] = []


class _Member(Struct, rename="camel"):
    cluster: _Name
    broker_addrs: _Addresses


class _Cluster(Struct, rename="camel"):
    broker_addr_table: Annotated[dict[str, _Member], Meta(max_length=MAX_ROUTE_BROKERS)]
    raymq_away: Annotated[dict[_Name, _Name], Meta(max_length=MAX_ROUTE_BROKERS)] = {}


class _Topics(Struct, rename="camel"):
    topic_list: list[str]


def read_route(topic: str, body: Buffer) -> TopicRoute:
    """Return the route in an answer to GET_ROUTEINFO_BY_TOPIC.

    Queues of a broker without an address are left out, as by RocketMQ's clients, because no request could reach them. A
    group that has other replicas but no master at the moment counts as away: it is about to elect one.

    Raises:
        ProtocolError: the body is no route, or has more queues or brokers than a client accepts.
    """
    route = _decode(body, _Route)
    masters = {each.broker_name: each for each in route.broker_datas if MASTER_ID in each.broker_addrs}
    addresses = {name: each.broker_addrs[MASTER_ID] for name, each in masters.items()}
    limits = {
        name: each.raymq_max_message_bytes for name, each in masters.items() if each.raymq_max_message_bytes is not None
    }
    without_master = {each.broker_name for each in route.broker_datas if each.broker_addrs} - masters.keys()
    queues = _queues(topic, [*route.queue_datas, *route.raymq_away])
    if route.queue_datas and not addresses and not without_master:
        raise ProtocolError(f"no broker in the route of {topic} has an address")
    since = {each.broker_name: each.away_seconds for each in route.raymq_away}
    since |= dict.fromkeys(without_master & queues.keys() - since.keys(), 0)
    return TopicRoute(
        topic,
        tuple(data for name, data in queues.items() if name in addresses and name not in since),
        addresses,
        limits,
        tuple(RecentlyLeftQueues(queues[name], seconds) for name, seconds in since.items() if name not in addresses),
    )


def _queues(topic: str, items: list[_Queues]) -> dict[str, QueueData]:
    """Return the queues on each broker."""
    queues: dict[str, QueueData] = {}
    for data in items:
        if data.broker_name in queues:
            raise ProtocolError(f"the route of {topic} has the queues of {data.broker_name} twice")
        queues[data.broker_name] = QueueData(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm)
    if max(sum(each.read_queues for each in queues.values()), sum(each.write_queues for each in queues.values())) > (
        MAX_ROUTE_QUEUES
    ):
        raise ProtocolError(f"the route of {topic} has more than {MAX_ROUTE_QUEUES} queues")
    return queues


def read_view(body: Buffer) -> ClusterView:
    """Return the cluster in an answer to GET_BROKER_CLUSTER_INFO.

    Raises:
        ProtocolError: the body is no cluster, or has more brokers than a client accepts.
    """
    found = _decode(body, _Cluster)
    table = found.broker_addr_table
    brokers = {name: (each.cluster, each.broker_addrs) for name, each in sorted(table.items())}
    return ClusterView(brokers, {name: address for name, address in found.raymq_away.items() if name not in brokers})


def read_topics(body: Buffer) -> list[str]:
    """Return the sorted topics in an answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER.

    Raises:
        ProtocolError: the body is invalid.
    """
    return sorted(_decode(body, _Topics).topic_list)


def _decode(body: Buffer, kind: type[T]) -> T:
    try:
        return json_body.decode(body, kind, max_bytes=MAX_FRAME_BYTES, max_values=None)
    except InvalidInput as error:
        raise ProtocolError(f"a name server's answer has an unexpected form: {error}") from error
