"""Calling back messages that wait for a chosen time: RocketMQ's command, and ours, which answers definitely."""

from __future__ import annotations

from raymq.actors.broker.context import BrokerContext, text
from raymq.actors.errors import InvalidInput, NotRecallable
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.recall import RecallMessage
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.actors.wire.stepwise import stepwise


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core

    async def recall(_: ServerConnection, request: Command) -> Command:
        status = await stepwise(core.recalls.steps(RecallHandle.decode(text(request, "handle"))))
        return await settled(request.response(ResponseCode.SUCCESS, {"status": status.value}))

    async def recall_message(_: ServerConnection, request: Command) -> Command:
        header = RecallMessage.read(request)
        core.topic(header.topic)
        try:
            handle = RecallHandle.decode(header.recall_handle)
            if handle.topic != header.topic:
                raise InvalidInput("topic", f"the handle's, {handle.topic}", header.topic)
            status = await stepwise(core.recalls.steps(handle))
        except InvalidInput as error:
            raise NotRecallable(f"recall failed, {error}") from None
        if status is not RecallStatus.WITHDRAWN:
            raise NotRecallable(f"recall failed, the message is {status.value.lower()}")
        return await settled(request.response(ResponseCode.SUCCESS, {"msgId": handle.unique_key}))

    async def settled(answer: Command) -> Command:
        waiting = context.when_settled(lambda _: answer)
        return waiting if isinstance(waiting, Command) else await waiting

    return {RequestCode.RECALL_TIMER: recall, RequestCode.RECALL_MESSAGE: recall_message}
