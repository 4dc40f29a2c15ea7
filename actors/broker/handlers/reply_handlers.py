"""Handle replies: store them in the reply topic and push them to the requesting client.

The property REPLY_TO_CLIENT names that client. It is connected to this broker, because a client sends heartbeats to all
brokers before it sends a request. A client that has not sent them yet is found if it sent the request over this broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Any

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers.broker_command import Commands, changes
from raymq.actors.broker.handlers.send_handlers import REGION, read_inbound_message, refusal
from raymq.actors.errors import BrokerUnavailable, MessageIllegal, RayMQError, StoreError
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Buffer, Command
from raymq.actors.wire.headers.send_headers import PushReplyMessage, SendMessage, SendReplyMessage, SendReplyMessageV2
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.records import property_names as names
from raymq.storage.records.record import decode_properties, encode_properties

#: How long the requesting client may take to answer the push.
_PUSH_SECONDS = 10.0
_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"

_HEADERS: dict[int, type[SendMessage]] = {header.CODE: header for header in (SendReplyMessage, SendReplyMessageV2)}

_log = logging.getLogger(__name__)


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""

    def reply(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        try:
            header = _HEADERS[request.code].read(request)
            fields = _keep(context, header, bytes(request.body), connection.peer)
        except RayMQError as error:
            return refusal(request, error)
        return pushed(connection.peer, header, request, fields)

    async def pushed(peer: str, header: SendMessage, request: Command, fields: dict[str, Any]) -> Command:
        try:
            await _push(context, header, request.body, peer)
        except RayMQError as error:
            return refusal(request, error)
        return request.response(ResponseCode.SUCCESS, fields)

    return dict.fromkeys(_HEADERS, changes(reply))


def _keep(context: BrokerContext, header: SendMessage, body: bytes, peer: str) -> dict[str, Any]:
    """Store the reply and return the fields of the answer.

    A reply that cannot be stored, for example an empty one, is pushed anyway.
    """
    try:
        accepted = context.core.send_processor.accept(read_inbound_message(header, body, peer))
    except (MessageIllegal, StoreError) as error:
        _log.info("a reply of %s to %s is not stored: %s", peer, header.topic, error)
        return {**REGION, "msgId": "0", "queueId": header.queue_id, "queueOffset": 0}
    context.statistics.put(accepted.topic, accepted.messages, accepted.size)
    return {**REGION, "msgId": accepted.message_id, "queueId": accepted.queue_id, "queueOffset": accepted.queue_offset}


async def _push(context: BrokerContext, header: SendMessage, body: Buffer, peer: str) -> None:
    """Push the reply to the requesting client. Raise RayMQError if it fails."""
    properties = decode_properties(header.properties.encode("utf-8", "replace"))
    client_id = properties.get(names.REPLY_TO_CLIENT)
    if client_id is None:
        raise RayMQError(f"the reply has no property {names.REPLY_TO_CLIENT}")
    connection = context.groups.connection_of(client_id) or context.requesters.connection_of(client_id)
    if not isinstance(connection, ServerConnection):
        raise RayMQError(f"the requesting client {client_id} is not connected")
    now_ms = int(time.time() * 1000)
    properties[_PUSH_REPLY_TIME] = str(now_ms)
    command = PushReplyMessage.of(
        header,
        properties=encode_properties(properties).decode(),
        born_host=peer,
        store_host=context.core.store.config.store_host,
        store_timestamp=now_ms,
    ).command(body)
    try:
        answer = await connection.request(command, _PUSH_SECONDS)
    except BrokerUnavailable as error:  # here the client did not answer, not a broker
        raise RayMQError(f"the requesting client {client_id}: {error}") from error
    if answer.code != ResponseCode.SUCCESS:
        raise RayMQError(f"the requesting client {client_id} refused the reply: {answer.remark}")
