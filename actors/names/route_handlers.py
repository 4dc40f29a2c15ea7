"""Serve routes: the registrations of brokers, and the lookups of clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from raymq.actors.errors import InvalidInput, ServerBusy
from raymq.actors.names.route_table import RouteTable
from raymq.actors.naming import check_topic
from raymq.actors.protocol import MASTER_ID, QueueData
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.route_answers import AWAY, AWAY_FOR, BODY_LIMIT, MAX_ROUTE_PERM, MAX_ROUTE_QUEUES
from raymq.actors.wire.frame import MAX_FRAME_BYTES, Buffer, Command
from raymq.actors.wire.headers.route_headers import (
    AddWritePermission,
    DeleteTopicInNameServer,
    GetBrokerMemberGroup,
    GetClusterInfo,
    GetRouteInfo,
    GetTopicsByCluster,
    QueryDataVersion,
    RegisterBroker,
    UnregisterBroker,
    WipeWritePermission,
)
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler
from raymq.storage.cooperative_steps import Steps
from raymq.storage.files.json_file import DataVersion

#: The most JSON values of a registration: a broker with 100,000 topics sends five values per topic.
_MAX_REGISTERED_VALUES = 600_000
#: A longer registration is read in a worker thread. A shorter one, of some 500 topics at most, is read at once.
_SHORT_BYTES = 25_000
#: Lists of all topics made at a time: each takes some 50 bytes per name.
_LISTS_AT_ONCE = 2


def handlers(
    table: RouteTable, order_of: Callable[[str], str | None], members: Callable[[], Iterable[str]] = tuple
) -> dict[int, Handler]:
    """Return the handlers of route requests.

    Args:
        order_of: returns the configuration of an ordered topic, or None.
        members: returns the names of all brokers that have ever been in the cluster.
    """
    return {**_registration(table), **_permission(table), **_lookup(table, order_of, members)}


def _registration(table: RouteTable) -> dict[int, Handler]:
    watched: set[ServerConnection] = set()
    long = _LongRegistrations()

    def watch(connection: ServerConnection) -> None:
        if connection not in watched:
            watched.add(connection)
            connection.add_close_callback(lambda: watched.discard(connection))
            connection.add_close_callback(lambda: table.connection_closed(connection))

    def register(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        header = RegisterBroker.read(request)
        if header.compressed:
            raise InvalidInput("compressed", "false", "true")
        watch(connection)
        if len(request.body) > _SHORT_BYTES:
            return put_later(connection, request, long.add(header, connection, request))
        long.drop(header.broker_name, header.broker_id, header.broker_addr)
        return put(connection, request, _read_registration(header, request.body))

    async def put_later(connection: ServerConnection, request: Command, read: Awaitable[_Registration]) -> Command:
        return put(connection, request, await read)

    def put(connection: ServerConnection, request: Command, read: _Registration) -> Command:
        header, (version, topics, deleted, since) = RegisterBroker.read(request), read
        accepted = True
        if since:
            accepted = table.amend(
                header.broker_name, header.broker_id, since, version, topics, deleted, header.broker_addr
            )
        else:
            table.register(
                header.cluster_name,
                header.broker_name,
                header.broker_id,
                header.broker_addr,
                topics,
                version,
                connection,
                max_body_bytes=_body_limit(header.raymq_max_message_bytes),
                ha_address=header.ha_server_addr,
            )
        fields: dict[str, Any] = {"changed": not accepted}
        if header.broker_id != MASTER_ID:
            fields["masterAddr"], fields["haServerAddr"] = table.master(header.broker_name)
        return request.response(ResponseCode.SUCCESS, fields)

    def heartbeat(connection: ServerConnection, request: Command) -> Command:
        header = QueryDataVersion.read(request)
        content = json_body.read_object(request.body)
        try:
            version = DataVersion.from_json(content)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput("dataVersion", "whole numbers", repr(error)) from error
        known = table.heartbeat(header.broker_name, header.broker_id, header.broker_addr, version, connection)
        watch(connection)
        return request.response(ResponseCode.SUCCESS, {"changed": not known})

    def unregister(_: ServerConnection, request: Command) -> Command:
        header = UnregisterBroker.read(request)
        long.drop(header.broker_name, header.broker_id, header.broker_addr)
        table.unregister(header.broker_name, header.broker_id, header.broker_addr)
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.REGISTER_BROKER: register,
        RequestCode.QUERY_DATA_VERSION: heartbeat,
        RequestCode.UNREGISTER_BROKER: unregister,
    }


class _Registration(NamedTuple):
    """The content of a registration: all or changed topics of a broker."""

    version: DataVersion
    topics: dict[str, QueueData]
    deleted: list[str]
    since: DataVersion | None


class _LongRegistrations:
    """Reads long registrations one by one in a thread, and drops obsolete ones.

    If many were read at the same time, all would end late, after the time-out of every broker. Each broker would then
    send all of its topics again.
    """

    def __init__(self) -> None:
        #: The newest of each replica. Its address is part of the key, as two may register as the master.
        self._newest: dict[tuple[str, int, str], Command] = {}
        self._lock = asyncio.Lock()

    def add(self, header: RegisterBroker, connection: ServerConnection, request: Command) -> Awaitable[_Registration]:
        """Return the future content.

        ServerBusy if the broker sent a newer request or the connection has ended.
        """
        replica = header.broker_name, header.broker_id, header.broker_addr
        self._newest[replica] = request

        async def read() -> _Registration:
            try:
                async with self._lock:
                    check_wanted()
                    content = await asyncio.to_thread(_read_registration, header, request.body)
                check_wanted()
                return content
            finally:
                if self._newest.get(replica) is request:
                    del self._newest[replica]

        def check_wanted() -> None:
            if self._newest.get(replica) is not request:
                raise ServerBusy("the broker sent a newer request")
            if connection.is_gone:
                raise ServerBusy("the connection ended")

        return read()

    def drop(self, name: str, replica_id: int, address: str) -> None:
        """Drop a replica's registration, because the broker has sent a newer request."""
        self._newest.pop((name, replica_id, address), None)


def _read_registration(header: RegisterBroker, body: Buffer) -> _Registration:
    """Read the body of a registration, in any thread."""
    content = json_body.read_object(body, max_bytes=MAX_FRAME_BYTES, max_values=_MAX_REGISTERED_VALUES)
    try:
        wrapper = content["topicConfigSerializeWrapper"]
        version = DataVersion.from_json(wrapper.get("dataVersion"))
        topics = dict(_queue_data(header.broker_name, *item) for item in wrapper["topicConfigTable"].items())
        deleted = [str(name) for name in content.get("raymqDeleted") or []]
        since = DataVersion.from_json(json.loads(header.raymq_since)) if header.raymq_since else None
    except InvalidInput:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InvalidInput("registration", "the body of REGISTER_BROKER", repr(error)) from error
    return _Registration(version, topics, deleted, since)


def _queue_data(broker: str, name: str, config: Mapping[str, Any]) -> tuple[str, QueueData]:
    """Return one topic of a registration."""
    reads, writes = (_number(name, config, field, MAX_ROUTE_QUEUES) for field in ("readQueueNums", "writeQueueNums"))
    return check_topic(name), QueueData(broker, reads, writes, _number(name, config, "perm", MAX_ROUTE_PERM))


def _body_limit(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise InvalidInput("raymqMaxMessageBytes", "1 or more", limit)
    return limit


def _number(topic: str, config: Mapping[str, Any], field: str, most: int) -> int:
    value = config[field]
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidInput(field, f"0..{most} for topic {topic}", value)
    return value


def _permission(table: RouteTable) -> dict[int, Handler]:
    def wipe(_: ServerConnection, request: Command) -> Command:
        count = table.wipe_write_permission(WipeWritePermission.read(request).broker_name)
        return request.response(ResponseCode.SUCCESS, {"wipeTopicCount": count})

    def add(_: ServerConnection, request: Command) -> Command:
        count = table.add_write_permission(AddWritePermission.read(request).broker_name)
        return request.response(ResponseCode.SUCCESS, {"addTopicCount": count})

    def delete_topic(_: ServerConnection, request: Command) -> Command:
        header = DeleteTopicInNameServer.read(request)
        table.delete_topic(header.topic, header.cluster_name or None)
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: add,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    }


def _lookup(
    table: RouteTable, order_of: Callable[[str], str | None], members: Callable[[], Iterable[str]]
) -> dict[int, Handler]:
    def route(_: ServerConnection, request: Command) -> Command:
        header = GetRouteInfo.read(request)
        if header.raymq_away:
            table.check_all_known(members())
        found = table.route(header.topic)
        limits = found.body_limits if header.raymq_limits else {}
        brokers = table.view().brokers
        body: dict[str, Any] = {
            "brokerDatas": [
                _broker_object(name, *brokers[name]) | ({BODY_LIMIT: limits[name]} if name in limits else {})
                for name in found.addresses
            ],
            "filterServerTable": {},
            "queueDatas": [_queue_object(data) for data in found.queues],
        }
        if header.raymq_away and found.away:
            body[AWAY] = [_queue_object(each.data) | {AWAY_FOR: int(each.seconds)} for each in found.away]
        order = order_of(found.topic)
        return json_body.answer(request, body if order is None else body | {"orderTopicConf": order})

    def cluster(_: ServerConnection, request: Command) -> Command:
        view = table.view()
        brokers = view.brokers
        clusters: dict[str, list[str]] = {}
        for name, (cluster_name, _addresses) in brokers.items():
            clusters.setdefault(cluster_name, []).append(name)
        body: dict[str, Any] = {
            "brokerAddrTable": {name: _broker_object(name, *replicas) for name, replicas in brokers.items()},
            "clusterAddrTable": clusters,
        }
        if GetClusterInfo.read(request).raymq_away and view.left:
            body[AWAY] = view.left
        return json_body.answer(request, body)

    def member_group(_: ServerConnection, request: Command) -> Command:
        header = GetBrokerMemberGroup.read(request)
        group = _member_group(
            header.broker_name, header.cluster_name, table.member_group(header.cluster_name, header.broker_name)
        )
        return json_body.answer(request, {"brokerMemberGroup": group})

    def topics(_: ServerConnection, request: Command) -> Steps[Command]:
        return listed(request, None)

    def topics_of_cluster(_: ServerConnection, request: Command) -> Steps[Command]:
        return listed(request, GetTopicsByCluster.read(request).cluster)

    def listed(request: Command, cluster: str | None) -> Steps[Command]:
        answers: list[Command] = []
        yield lambda: answers.append(json_body.answer(request, {"topicList": table.topics(cluster)}))
        return answers[0]

    def system_topics(_: ServerConnection, request: Command) -> Command:
        brokers = table.view().brokers
        names = sorted({cluster_name for cluster_name, _ in brokers.values()} | set(brokers))
        address = next((a for _, addresses in brokers.values() for a in addresses.values()), None)
        return json_body.answer(request, {"brokerAddr": address, "topicList": names})

    return {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
        RequestCode.GET_BROKER_CLUSTER_INFO: cluster,
        RequestCode.GET_BROKER_MEMBER_GROUP: member_group,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: coalescing_handler(topics, _LISTS_AT_ONCE),
        RequestCode.GET_TOPICS_BY_CLUSTER: coalescing_handler(topics_of_cluster, _LISTS_AT_ONCE),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
    }


def _queue_object(data: QueueData) -> dict[str, Any]:
    return {
        "brokerName": data.broker,
        "perm": data.perm,
        "readQueueNums": data.read_queues,
        "topicSysFlag": 0,
        "writeQueueNums": data.write_queues,
    }


def _member_group(name: str, cluster: str, addresses: Mapping[int, str]) -> dict[str, Any]:
    return {
        "brokerAddrs": {str(replica): address for replica, address in addresses.items()},
        "brokerName": name,
        "cluster": cluster,
    }


def _broker_object(name: str, cluster: str, addresses: Mapping[int, str]) -> dict[str, Any]:
    return {**_member_group(name, cluster, addresses), "enableActingMaster": False}
