"""Handle the sends of RocketMQ's clients: single messages and batches.

The header names are long, or single letters.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.appending.admission import refusal_cause
from raymq.actors.broker.core.appending.inbound_message import InboundMessage
from raymq.actors.broker.core.appending.send_message_processor import PutMessageResult
from raymq.actors.broker.handlers.broker_command import Commands, appends
from raymq.actors.errors import RayMQError
from raymq.actors.protocol import SendStatus
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.send_headers import SendBatchMessage, SendMessage, SendMessageV2
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import steps_handler
from raymq.storage.cooperative_steps import Steps
from raymq.storage.records import property_names as names
from raymq.storage.records.record import decode_properties, pack_host

#: Every answer to a send has these fields, errors too: clients' tracing reads them.
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

_STATUS_CODES = {
    SendStatus.SEND_OK: ResponseCode.SUCCESS,
    SendStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


def read_inbound_message(header: SendMessage, body: bytes, peer: str) -> InboundMessage:
    """Return the message that a client connected from `peer` sends."""
    return InboundMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        body=body,
        properties=decode_properties(header.properties.encode("utf-8", "replace")),
        born_timestamp_ms=header.born_timestamp,
        born_host=packed_host(peer),
        flag=header.flag,
        sys_flag=header.sys_flag,
        reconsume_times=header.reconsume_times,
        max_reconsume_times=header.max_reconsume_times,
        default_topic=header.default_topic,
        default_queues=header.default_topic_queue_nums,
    )


@functools.lru_cache(4096)
def packed_host(address: str) -> bytes:
    """Return a numeric "host:port", or "[host]:port", in the form of a record."""
    host, _, port = address.rpartition(":")
    return pack_host(host.strip("[]"), int(port))


def refusal(request: Command, error: Exception) -> Command:
    """Return the answer to a send that failed."""
    answer = error_codec.error_response(request, error)
    answer.fields |= REGION
    return answer


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core

    def send(connection: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        try:
            answer = yield from _accepting(connection, request, _HEADERS[request.code].read(request))
        except RayMQError as error:
            return refusal(request, error)
        return answer

    def _accepting(
        connection: ServerConnection, request: Command, header: SendMessage
    ) -> Steps[Command | Awaitable[Command]]:
        draft = read_inbound_message(header, bytes(request.body), connection.peer)
        asker = draft.properties.get(names.REPLY_TO_CLIENT)
        if asker is not None and context.requesters.add_requester(asker, connection):
            connection.add_close_callback(functools.partial(context.requesters.connection_closed, connection))
        if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
            try:
                accept = yield from core.send_processor.accept_batch_steps(draft)
            except RayMQError as error:
                context.statistics.refused(refusal_cause(error))
                raise
        else:
            accept = functools.partial(core.send_processor.accept, draft)

        def store() -> Callable[[SendStatus], Command]:
            accepted = accept()
            context.statistics.put(accepted.topic, accepted.messages, accepted.size)
            return lambda status: request.response(_STATUS_CODES[status], _fields(accepted))

        return context.append(len(request.body), store)

    return dict.fromkeys(_HEADERS, appends(steps_handler(send)))


_HEADERS: dict[int, type[SendMessage]] = {
    header.CODE: header for header in (SendMessage, SendMessageV2, SendBatchMessage)
}


def _fields(accepted: PutMessageResult) -> dict[str, object]:
    return {
        **REGION,
        "msgId": accepted.message_id,
        "queueId": accepted.queue_id,
        "queueOffset": accepted.queue_offset,
        "transactionId": accepted.unique_key,
        "recallHandle": accepted.recall_handle,
    }
