"""Handle CONSUMER_SEND_MSG_BACK: a message that a consumer failed on is redelivered or dead-lettered."""

from __future__ import annotations

from collections.abc import Awaitable

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.redelivery.retry import MoveToDlq, Quarantined, RetryLater
from raymq.actors.broker.handlers.broker_command import Commands, changes
from raymq.actors.errors import WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.send_back_commands import DELAY_MS, QUARANTINE_REASON
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.send_headers import ConsumerSendMsgBack
from raymq.actors.wire.server_connection import ServerConnection


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core

    def send_back(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        header = ConsumerSendMsgBack.read(request)
        limit = header.max_reconsume_times
        known = core.store.topic_configs.version
        decision = core.redelivery.send_back(
            header.group,
            header.offset,
            header.delay_level,
            None if limit is None or limit < 0 else limit,
            header.failure,
        )
        if header.origin_topic in core.topics:  # the client sends this name: a text of any length
            context.statistics.sent_back(header.group, header.origin_topic)

        def answer(status: SendStatus) -> Command:
            if status is not SendStatus.SEND_OK:  # a client that takes the message for sent back commits the original
                raise WriteUnknown("the message is not on disk yet: send it back again")
            # RocketMQ answers without fields; RayMQ's consumer reports to its watchers what became of the message
            fields: dict[str, object] = {"deadLetter": isinstance(decision, MoveToDlq)}
            if isinstance(decision, Quarantined):
                fields[QUARANTINE_REASON] = decision.reason
            if isinstance(decision, RetryLater):
                fields[DELAY_MS] = core.schedule.delay_ms(decision.level)
            return request.response(ResponseCode.SUCCESS, fields)

        return context.when_durable(answer, new_topic=core.store.topic_configs.version is not known)

    return {RequestCode.CONSUMER_SEND_MSG_BACK: changes(send_back)}
