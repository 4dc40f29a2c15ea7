"""Recall messages with a delivery time: RocketMQ's command, and RayMQ's with a definite answer."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext, text_field
from raymq.actors.broker.handlers.broker_command import Commands, changes
from raymq.actors.errors import InvalidInput, NotRecallable
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.recall_headers import RecallMessage
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import stepwise


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core

    async def recall(_: ServerConnection, request: Command) -> Command:
        status = await stepwise(core.recalls.recall_steps(RecallHandle.decode(text_field(request, "handle"))))
        return await settled(request.response(ResponseCode.SUCCESS, {"status": status.value}))

    async def recall_message(_: ServerConnection, request: Command) -> Command:
        header = RecallMessage.read(request)
        core.topic(header.topic)
        try:
            handle = RecallHandle.decode(header.recall_handle)
            if handle.topic != header.topic:
                raise InvalidInput("topic", f"the topic of the handle, {handle.topic}", header.topic)
            status = await stepwise(core.recalls.recall_steps(handle))
        except InvalidInput as error:
            raise NotRecallable(f"recall failed, {error}") from None
        if status is not RecallStatus.WITHDRAWN:
            raise NotRecallable(f"recall failed, the message is {status.value.lower()}")
        return await settled(request.response(ResponseCode.SUCCESS, {"msgId": handle.unique_key}))

    async def settled(answer: Command) -> Command:
        waiting = context.when_durable(lambda _: answer)
        return waiting if isinstance(waiting, Command) else await waiting

    return {RequestCode.RECALL_TIMER: changes(recall), RequestCode.RECALL_MESSAGE: changes(recall_message)}
