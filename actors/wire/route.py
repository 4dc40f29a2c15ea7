"""The name server's family of commands: registration, routes, cluster view, topic list; both directions.

Bodies are strict JSON in RocketMQ's shapes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from raymq.actors.core.name_server import RouteTable
from raymq.actors.errors import InvalidInput, ProtocolError
from raymq.actors.naming import check_topic
from raymq.actors.protocol import ClusterView, QueueData, TopicRoute
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Buffer, Command
from raymq.actors.wire.server import Handler, ServerConnection


def register_command(cluster: str, broker: str, replica: int, address: str, topics: Mapping[str, QueueData]) -> Command:
    """A broker's heartbeat (REGISTER_BROKER) with all its topics."""
    table = {
        name: {
            "topicName": name,
            "readQueueNums": data.read_queues,
            "writeQueueNums": data.write_queues,
            "perm": data.perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        for name, data in topics.items()
    }
    body = {"topicConfigSerializeWrapper": {"topicConfigTable": table}, "filterServerList": []}
    fields = {
        "brokerName": broker,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": "",
        "brokerId": replica,
        "compressed": False,
    }
    return Command(RequestCode.REGISTER_BROKER, fields, json.dumps(body).encode())


def read_route(topic: str, body: Buffer) -> TopicRoute:
    """The route in an answer to GET_ROUTEINFO_BY_TOPIC."""
    data = _json(body)
    queues = tuple(
        QueueData(item["brokerName"], item["readQueueNums"], item["writeQueueNums"], item["perm"])
        for item in data["queueDatas"]
    )
    addresses = {
        item["brokerName"]: item["brokerAddrs"][min(item["brokerAddrs"], key=int)] for item in data["brokerDatas"]
    }
    return TopicRoute(topic, queues, addresses)


def read_view(body: Buffer) -> ClusterView:
    """The cluster in an answer to GET_BROKER_CLUSTER_INFO."""
    data = _json(body)
    return ClusterView(
        {
            name: (item["cluster"], {int(replica): address for replica, address in item["brokerAddrs"].items()})
            for name, item in sorted(data["brokerAddrTable"].items())
        }
    )


def handlers(table: RouteTable, status: Callable[[], dict[str, Any]]) -> dict[int, Handler]:
    """What a name server serves. `status` says who it is, for STATUS."""

    def who(_: ServerConnection, request: Command) -> Command:
        return request.response(ResponseCode.SUCCESS, status())

    return {**_registration(table), **_lookup(table), RequestCode.STATUS: who}


def _registration(table: RouteTable) -> dict[int, Handler]:
    def register(_: ServerConnection, request: Command) -> Command:
        fields = request.fields
        try:
            wrapper = _json(request.body)["topicConfigSerializeWrapper"]
            topics = {
                check_topic(name): QueueData(
                    fields["brokerName"], item["readQueueNums"], item["writeQueueNums"], item["perm"]
                )
                for name, item in wrapper["topicConfigTable"].items()
            }
            broker, replica = fields["brokerName"], int(fields["brokerId"])
            table.register(fields["clusterName"], broker, replica, fields["brokerAddr"], topics)
        except (KeyError, TypeError) as error:
            raise InvalidInput("registration", "the fields of REGISTER_BROKER", repr(error)) from error
        return request.response(ResponseCode.SUCCESS)

    def unregister(_: ServerConnection, request: Command) -> Command:
        table.unregister(request.fields.get("brokerName", ""), int(request.fields.get("brokerId", 0)))
        return request.response(ResponseCode.SUCCESS)

    def delete_topic(_: ServerConnection, request: Command) -> Command:
        table.delete_topic(request.fields.get("topic", ""))
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.REGISTER_BROKER: register,
        RequestCode.UNREGISTER_BROKER: unregister,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    }


def _lookup(table: RouteTable) -> dict[int, Handler]:
    def route(_: ServerConnection, request: Command) -> Command:
        found = table.route(request.fields.get("topic", ""))
        view = table.view().brokers
        body = {
            "brokerDatas": [
                {
                    "brokerAddrs": {str(i): address for i, address in view[name][1].items()},
                    "brokerName": name,
                    "cluster": view[name][0],
                    "enableActingMaster": False,
                }
                for name in found.addresses
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": data.broker,
                    "perm": data.perm,
                    "readQueueNums": data.read_queues,
                    "writeQueueNums": data.write_queues,
                    "topicSysFlag": 0,
                }
                for data in found.queues
            ],
        }
        return request.response(ResponseCode.SUCCESS, body=json.dumps(body).encode())

    def cluster(_: ServerConnection, request: Command) -> Command:
        view = table.view().brokers
        clusters: dict[str, list[str]] = {}
        for name, (cluster_name, _addresses) in view.items():
            clusters.setdefault(cluster_name, []).append(name)
        body = {
            "brokerAddrTable": {
                name: {
                    "brokerAddrs": {str(i): address for i, address in addresses.items()},
                    "brokerName": name,
                    "cluster": cluster_name,
                }
                for name, (cluster_name, addresses) in view.items()
            },
            "clusterAddrTable": clusters,
        }
        return request.response(ResponseCode.SUCCESS, body=json.dumps(body).encode())

    def topics(_: ServerConnection, request: Command) -> Command:
        return request.response(ResponseCode.SUCCESS, body=json.dumps({"topicList": table.topics()}).encode())

    return {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
        RequestCode.GET_BROKER_CLUSTER_INFO: cluster,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics,
    }


def _json(body: Buffer) -> dict[str, Any]:
    try:
        data = json.loads(bytes(body))
    except ValueError as error:
        raise ProtocolError(f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ProtocolError("the body is no JSON object")
    return data
