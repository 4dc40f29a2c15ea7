"""CONSUMER_SEND_MSG_BACK: a consumer failed on a message, which comes again later or goes to the dead letters."""

from __future__ import annotations

from collections.abc import Awaitable

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.redelivery.retry import Dead, Later, PutAside
from raymq.actors.errors import WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.send_back import DELAY_MS, SET_ASIDE
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.send import ConsumerSendMsgBack
from raymq.actors.wire.server_connection import Handler, ServerConnection


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
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
        if header.origin_topic in core.topics:  # it is what the client says: a text of any length
            context.statistics.sent_back(header.group, header.origin_topic)

        def answer(status: SendStatus) -> Command:
            if status is not SendStatus.SEND_OK:  # who takes it for done commits the original
                raise WriteUnknown("the message is not on disk yet: send it back again")
            # RocketMQ answers without fields; our own consumer tells its watchers what became of the message
            fields: dict[str, object] = {"deadLetter": isinstance(decision, Dead)}
            if isinstance(decision, PutAside):
                fields[SET_ASIDE] = decision.reason
            if isinstance(decision, Later):
                fields[DELAY_MS] = core.schedule.delay_ms(decision.level)
            return request.response(ResponseCode.SUCCESS, fields)

        return context.when_settled(answer, new_topic=core.store.topic_configs.version is not known)

    return {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
