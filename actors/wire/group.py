"""The group family: heartbeats, member lists, notifications of change, committed offsets. RocketMQ's shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raymq.actors.core.filters import Subscription
from raymq.actors.errors import InvalidInput, MessageNotFound
from raymq.actors.naming import check_group
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.context import BrokerContext, integer, text
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import Handler, ServerConnection


def heartbeat_command(
    client_id: str, group: str, subscriptions: Mapping[str, Subscription], *, model: str, start: str
) -> Command:
    """HEART_BEAT of one consumer; `subscriptions` are by topic, `start` is RocketMQ's consumeFromWhere."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": start,
        "unitMode": False,
        "subscriptionDataSet": [
            {"topic": topic, "subString": subscription.expression, "expressionType": subscription.kind}
            for topic, subscription in sorted(subscriptions.items())
        ],
    }
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
    return Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def unregister_command(client_id: str, group: str) -> Command:
    """UNREGISTER_CLIENT: a consumer leaves its group."""
    return Command(RequestCode.UNREGISTER_CLIENT, {"clientID": client_id, "consumerGroup": group})


def create_group_command(group: str) -> Command:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: make a group, with its retry topic, where it is missing."""
    body = json.dumps({"groupName": group}).encode()
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def members_command(group: str) -> Command:
    """GET_CONSUMER_LIST_BY_GROUP."""
    return Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})


def read_members(answer: Command) -> list[str]:
    """The client ids in an answer to GET_CONSUMER_LIST_BY_GROUP."""
    return [str(client_id) for client_id in json.loads(bytes(answer.body))["consumerIdList"]]


def query_offset_command(group: str, topic: str, queue_id: int) -> Command:
    """QUERY_CONSUMER_OFFSET; "never committed" is answered with QUERY_NOT_FOUND."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "setZeroIfNotFound": False}
    return Command(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def update_offset_command(group: str, topic: str, queue_id: int, offset: int) -> Command:
    """UPDATE_CONSUMER_OFFSET: everything below `offset` is done."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    return {**_membership(context), **_offsets(context)}


def _membership(context: BrokerContext) -> dict[int, Handler]:
    core, groups = context.core, context.groups

    async def heartbeat(connection: ServerConnection, request: Command) -> Command:
        data = _json(request)
        client_id = str(data.get("clientID") or "")
        if not client_id:
            raise InvalidInput("clientID", "a client's id", client_id)
        announce = False
        for consumer in data.get("consumerDataSet") or []:
            group = check_group(consumer.get("groupName"))
            subscriptions = {
                str(item["topic"]): str(item.get("subString") or "*")
                for item in consumer.get("subscriptionDataSet") or []
            }
            joined = groups.heartbeat(group, client_id, subscriptions, connection)
            announce = core.ensure_group(group) or announce
            if joined:
                context.notify_group(group)
        closed = groups.connection_closed
        if not connection.on_close:
            connection.on_close.append(lambda: closed(connection))
        if announce:
            await context.announce()
        return request.response(ResponseCode.SUCCESS)

    async def create_group(_: ServerConnection, request: Command) -> Command:
        if core.ensure_group(check_group(_json(request).get("groupName"))):
            await context.announce()
        return request.response(ResponseCode.SUCCESS)

    def unregister(_: ServerConnection, request: Command) -> Command:
        group = request.fields.get("consumerGroup")
        if group is not None and groups.unregister(str(group), text(request, "clientID")):
            context.notify_group(str(group))
        return request.response(ResponseCode.SUCCESS)

    def members(_: ServerConnection, request: Command) -> Command:
        found = groups.members(text(request, "consumerGroup"))
        return request.response(ResponseCode.SUCCESS, body=json.dumps({"consumerIdList": found}).encode())

    return {
        RequestCode.HEART_BEAT: heartbeat,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create_group,
        RequestCode.UNREGISTER_CLIENT: unregister,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: members,
    }


def _offsets(context: BrokerContext) -> dict[int, Handler]:
    core = context.core

    def query_offset(_: ServerConnection, request: Command) -> Command:
        group, topic = text(request, "consumerGroup"), text(request, "topic")
        offset = core.committed(group, topic, integer(request, "queueId"))
        if offset is None:
            raise MessageNotFound(f"group {group} has no offset in this queue of {topic}")
        return request.response(ResponseCode.SUCCESS, {"offset": offset})

    def update_offset(_: ServerConnection, request: Command) -> Command:
        core.commit_offset(
            text(request, "consumerGroup"),
            text(request, "topic"),
            integer(request, "queueId"),
            integer(request, "commitOffset"),
        )
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
        RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    }


def _json(request: Command) -> dict[str, Any]:
    try:
        data = json.loads(bytes(request.body))
    except ValueError as error:
        raise InvalidInput("body", "JSON", str(error)) from error
    if not isinstance(data, dict):
        raise InvalidInput("body", "a JSON object", data)
    return data
