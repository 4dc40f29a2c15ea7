"""A master's commands behind its office: refused while it is not surely master, and answered when they are safe.

An append answers by itself when what it has stored is safe (`BrokerContext.durable`). Other changes, such as commits of
offsets and settings of topics, are answered once the group has them as safely as its policy promises. Reads of messages
wait for nothing: they see only what is confirmed. Of the state beside the log a read sees what may be lost yet: what
somebody else acts upon is told when it is as safe as a change. What a read has found while it was parked only a master
may give away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from raymq.actors.broker.replica.office import Office
from raymq.actors.broker.replication.acknowledging import NOT_MASTER
from raymq.actors.errors import BrokerUnavailable, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.prompt_future import PromptFuture
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection

_APPENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.APPEND_RECORDS,
        RequestCode.APPEND_ONE,
        RequestCode.APPEND_ONE_SEQUENCED,
    }
)
_CHANGES: Final = frozenset(
    {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.RECALL_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.STAGE_RECORDS,
        RequestCode.COMMIT_STAGED,
        RequestCode.ABORT_STAGED,
        RequestCode.REMEMBER_HOME,
        RequestCode.FORGET_BROKER,
        RequestCode.OPEN_WRITE,
        RequestCode.DECIDE_WRITE,
        RequestCode.WRITES_DONE,
        RequestCode.PLAN_BATCH,
        RequestCode.RECALL_TIMER,
        RequestCode.REDRIVE_DEAD_LETTERS,
        RequestCode.DELETE_DEAD_LETTERS,
        RequestCode.DELETE_GROUP,
        RequestCode.FORGET_GROUP_TOPIC,
        RequestCode.SETTLE_DELIVERIES,
    }
)
#: What has become of a write, which messages a batch reads, who is the home of something: others append, read and
#: decide by it, on other brokers. The next master has to know of it, too.
_DECISIONS: Final = frozenset(
    {RequestCode.ASK_WRITES, RequestCode.FIND_HOME, RequestCode.COPY_HOMES, RequestCode.STREAM_PLANS}
)
_SUCCESSES: Final = frozenset({ResponseCode.SUCCESS})


def gated(handlers: Mapping[int, Handler], office: Office) -> dict[int, Handler]:
    """The same handlers, behind the office."""
    return {code: _gate(code, handler, office) for code, handler in handlers.items()}


def _gate(code: int, handler: Handler, office: Office) -> Handler:
    if code in _APPENDS:
        serve = _append(handler, office)
    elif code in _CHANGES:
        serve = _change(handler, office)
    elif code in _DECISIONS:
        serve = _decision(handler, office)
    else:
        serve = _read(handler, office)
    if getattr(handler, "waits", False):
        serve.waits = True  # type: ignore[attr-defined]
    return serve


def _read(handler: Handler, office: Office) -> Handler:
    async def still_master(answering: Awaitable[Answer]) -> Answer:
        answer = await answering
        if answer is not None and answer.body_bytes:
            office.check_master()  # it may have waited for longer than the lease
        return answer

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        office.check_master()
        result = handler(connection, request)
        return result if result is None or isinstance(result, Command) else still_master(result)

    return serve


def _decision(handler: Handler, office: Office) -> Handler:
    async def settled(result: Answer | Awaitable[Answer]) -> Answer:
        answer = result if result is None or isinstance(result, Command) else await result
        try:
            is_shared = await office.is_shared(office.end)
        except WriteUnknown:
            office.check_master()
            raise
        if not is_shared:
            raise BrokerUnavailable(office.name, "what it knows is not in all replicas in sync yet: ask again")
        return answer

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        office.check_master()
        return settled(handler(connection, request))

    return serve


def _append(handler: Handler, office: Office) -> Handler:
    async def checked(answering: Awaitable[Answer]) -> Answer:
        answer = await answering
        if not office.serves:
            # With sync what was waited for cannot be taken back; here only the lease says that nobody else is master.
            raise WriteUnknown(f"stored, but {NOT_MASTER}: the next master has it, or not")
        return answer

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        office.check_may_write()
        result = handler(connection, request)
        if office.is_sync or result is None or isinstance(result, PromptFuture | Command):
            return result
        return checked(result)

    promptly = getattr(handler, "promptly", None)
    if promptly is not None:

        def serve_promptly(body: memoryview, answer: Callable[[bytes], None]) -> bool | PromptFuture[bytes]:
            if not office.answers_directly:
                return False
            office.check_may_write()
            served: bool | PromptFuture[bytes] = promptly(body, answer)
            return served

        serve.promptly = serve_promptly  # type: ignore[attr-defined]
    return serve


def _change(handler: Handler, office: Office) -> Handler:
    async def settled(answer: Answer) -> Answer:
        if answer is not None and answer.code not in _SUCCESSES:
            return answer
        status = await office.settled_durably(office.end)
        if status is not SendStatus.SEND_OK:
            raise WriteUnknown(f"done here, and not in all replicas in sync: {status.value}")
        return answer

    async def finished(answering: Awaitable[Answer]) -> Answer:
        return await settled(await answering)

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        office.check_may_write()
        result = handler(connection, request)
        return settled(result) if result is None or isinstance(result, Command) else finished(result)

    return serve
