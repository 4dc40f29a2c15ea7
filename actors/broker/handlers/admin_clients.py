"""List the clients of a broker, and relay questions to one of them."""

from __future__ import annotations

import json
import time
from typing import Any

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.broker_runtime_info import VERSION
from raymq.actors.broker.core.groups.client_registry import ConnectedClient, GroupMember
from raymq.actors.broker.handlers.admin_offsets import subscription_object
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.errors import ConsumerNotOnline, GroupNotFound, InvalidInput, ProtocolError, Timeout
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.admin_headers import (
    ConsumeMessageDirectly,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    GetConsumerStatusFromClient,
    GetProducerConnectionList,
)
from raymq.actors.wire.server_connection import ServerConnection, discard_body
from raymq.storage.clock import boottime
from raymq.storage.records import message_id as message_ids

#: How long a client may take to answer a relayed question (RocketMQ's 10 s).
CLIENT_SECONDS = 10.0


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    return {**_connections(context), **_questions(context)}


def _connections(context: BrokerContext) -> Commands:
    groups = context.groups

    def consumers(_: ServerConnection, request: Command) -> Command:
        name = GetConsumerConnectionList.read(request).consumer_group
        try:
            group = groups.consumer_group(name)
        except GroupNotFound:
            raise ConsumerNotOnline(f"the consumer group[{name}] not online") from None
        body = {
            "connectionSet": [_connection_object(client) for client in groups.clients(name)],
            "consumeFromWhere": group.latest.consume_from_where,
            "consumeType": group.latest.consume_type,
            "messageModel": group.latest.message_model,
            "subscriptionTable": {topic: subscription_object(s) for topic, s in group.subscriptions.items()},
        }
        return json_body.answer(request, body)

    def producers(_: ServerConnection, request: Command) -> Command:
        name = GetProducerConnectionList.read(request).producer_group
        clients = groups.producers(name)
        if not clients:
            raise ProtocolError(f"the producer group[{name}] not exist")
        return json_body.answer(request, {"connectionSet": [_connection_object(client) for client in clients]})

    def all_producers(_: ServerConnection, request: Command) -> Command:
        data = {name: [_producer_object(m) for m in members] for name, members in groups.producer_groups().items()}
        return json_body.answer(request, {"data": data})

    return {
        RequestCode.GET_CONSUMER_CONNECTION_LIST: reads(consumers),
        RequestCode.GET_PRODUCER_CONNECTION_LIST: reads(producers),
        RequestCode.GET_ALL_PRODUCER_INFO: reads(all_producers),
    }


def _questions(context: BrokerContext) -> Commands:
    async def running_info(_: ServerConnection, request: Command) -> Command:
        header = GetConsumerRunningInfo.read(request)
        return await _relay(context, request, header.consumer_group, header.client_id, header.command())

    async def consume(_: ServerConnection, request: Command) -> Command:
        header = ConsumeMessageDirectly.read(request)
        body: bytes = b""
        if header.msg_id is not None:
            try:
                _host, _port, physical_offset = message_ids.decode(header.msg_id)
            except ValueError as error:
                raise InvalidInput("msgId", "an offset message id", header.msg_id) from error
            body = context.core.store.raw_at(physical_offset)
        question = Command(header.CODE, {**request.fields, "brokerName": context.core.name}, body)
        return await _relay(context, request, header.consumer_group, header.client_id or "", question)

    async def status(_: ServerConnection, request: Command) -> Command:
        header = GetConsumerStatus.read(request)
        ids = [client.client_id for client in context.groups.clients(header.group)]
        if not ids:
            raise ConsumerNotOnline(f"the consumer group[{header.group}] not online")
        parts = []
        for client_id in ids:
            if header.client_addr in ("", client_id):
                question = GetConsumerStatusFromClient(header.topic, header.group).command()
                answer = await _ask(context, header.group, client_id, question)
                if answer.code == ResponseCode.SUCCESS:
                    parts.append(f"{json.dumps(client_id)}:{_object_after(answer, 'messageQueueTable')}")
        body = '{"consumerTable":{' + ",".join(parts) + "}}"
        return request.response(ResponseCode.SUCCESS, body=body.encode(errors="replace"))

    return {
        RequestCode.GET_CONSUMER_RUNNING_INFO: reads(discard_body(running_info)),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: reads(discard_body(consume)),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: reads(discard_body(status)),
    }


async def _relay(context: BrokerContext, request: Command, group: str, client_id: str, question: Command) -> Command:
    """Return the client's answer as the answer to `request`.

    Its body is in a dialect of JSON that the broker does not parse.
    """
    try:
        answer = await _ask(context, group, client_id, question)
    except Timeout:
        remark = f"consumer <{group}> <{client_id}> did not answer within {CLIENT_SECONDS:.0f} s"
        return request.response(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
    return request.response(answer.code, dict(answer.fields), answer.body, answer.remark)


async def _ask(context: BrokerContext, group: str, client_id: str, question: Command) -> Command:
    """Ask a client of the group. Raise ConsumerNotOnline, Timeout or ConnectionLost if it fails."""
    member = any(client.client_id == client_id for client in context.groups.clients(group))
    connection = context.groups.connection_of(client_id) if member else None
    if not isinstance(connection, ServerConnection):
        raise ConsumerNotOnline(f"The Consumer <{group}> <{client_id}> not online")
    return await connection.request(question, CLIENT_SECONDS)


def _connection_object(client: ConnectedClient) -> dict[str, Any]:
    return {
        "clientAddr": _address(client),
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version or VERSION,
    }


def _producer_object(member: GroupMember) -> dict[str, Any]:
    client = member.client
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": int((time.time() - (boottime() - member.last_seen)) * 1000),
        "remoteIP": _address(client),
        "version": client.version or VERSION,
    }


def _address(client: ConnectedClient) -> str:
    newest = client.connections[-1] if client.connections else None
    return newest.peer if isinstance(newest, ServerConnection) else ""


def _object_after(answer: Command, name: str) -> str:
    """Return the text of the object that is the value of `name`, or "{}".

    RocketMQ's clients write maps whose keys are objects, which is no valid JSON: the text is passed on as it is.
    """
    text = bytes(answer.body).decode()
    start = text.find("{", text.find(f'"{name}"') + len(name)) if f'"{name}"' in text else -1
    if start < 0:
        return "{}"
    depth, quoted, escaped = 0, False, False
    for at in range(start, len(text)):
        character = text[at]
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return text[start : at + 1]
    return "{}"
