"""Guard a master's commands: refuse them without a lease, answer them when safe.

An append answers by itself when its data are safe (`BrokerContext.durable`). Other changes, such as commits of offsets
and settings of topics, are answered once the group has them as safely as its policy promises. Reads of messages do not
wait: they see only confirmed messages. Reads of the state beside the log may see changes that may still be lost, so
answers on which other brokers act wait like a change. A parked read returns messages only if the broker is still
master.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replication.ack_rule import NOT_MASTER
from raymq.actors.errors import BrokerUnavailable, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture

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
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
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
#: The outcome of a write, the messages of a batch, the coordinator of something: clients and other brokers append, read
#: and decide by these answers, so the next master must have them, too.
_DECISIONS: Final = frozenset(
    {RequestCode.ASK_WRITES, RequestCode.FIND_HOME, RequestCode.COPY_HOMES, RequestCode.STREAM_PLANS}
)
_SUCCESSES: Final = frozenset({ResponseCode.SUCCESS})


def guard_handlers(handlers: Mapping[int, Handler], leadership: Leadership) -> dict[int, Handler]:
    """Return the same handlers, guarded by the leadership."""
    return {code: _gate(code, handler, leadership) for code, handler in handlers.items()}


def _gate(code: int, handler: Handler, leadership: Leadership) -> Handler:
    if code in _APPENDS:
        serve = _append(handler, leadership)
    elif code in _CHANGES:
        serve = _change(handler, leadership)
    elif code in _DECISIONS:
        serve = _decision(handler, leadership)
    else:
        serve = _read(handler, leadership)
    if getattr(handler, "waits", False):
        serve.waits = True  # type: ignore[attr-defined]
    return serve


def _read(handler: Handler, leadership: Leadership) -> Handler:
    async def still_master(answering: Awaitable[Answer]) -> Answer:
        answer = await answering
        if answer is not None and answer.body_bytes:
            leadership.check_master()  # it may have waited longer than the lease lasts
        return answer

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        leadership.check_master()
        result = handler(connection, request)
        return result if result is None or isinstance(result, Command) else still_master(result)

    return serve


def _decision(handler: Handler, leadership: Leadership) -> Handler:
    async def settled(result: Answer | Awaitable[Answer]) -> Answer:
        answer = result if result is None or isinstance(result, Command) else await result
        try:
            is_replicated = await leadership.is_replicated(leadership.end)
        except WriteUnknown:
            leadership.check_master()
            raise
        if not is_replicated:
            raise BrokerUnavailable(leadership.name, "its answer is not in all in-sync replicas yet: ask again")
        return answer

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        leadership.check_master()
        return settled(handler(connection, request))

    return serve


def _append(handler: Handler, leadership: Leadership) -> Handler:
    async def checked(answering: Awaitable[Answer]) -> Answer:
        answer = await answering
        if not leadership.serves:
            # Without sync only the lease shows, after the wait, that no other broker is master.
            raise WriteUnknown(f"stored, but {NOT_MASTER}: the next master may or may not have it")
        return answer

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        leadership.check_may_write()
        result = handler(connection, request)
        if leadership.is_sync or result is None or isinstance(result, SyncCallbackFuture | Command):
            return result
        return checked(result)

    try_answer_inline = getattr(handler, "try_answer_inline", None)
    if try_answer_inline is not None:

        def serve_promptly(body: memoryview, answer: Callable[[bytes], None]) -> bool | SyncCallbackFuture[bytes]:
            if not leadership.acks_without_flush:
                return False
            leadership.check_may_write()
            served: bool | SyncCallbackFuture[bytes] = try_answer_inline(body, answer)
            return served

        serve.try_answer_inline = serve_promptly  # type: ignore[attr-defined]
    return serve


def _change(handler: Handler, leadership: Leadership) -> Handler:
    async def settled(answer: Answer) -> Answer:
        if answer is not None and answer.code not in _SUCCESSES:
            return answer
        status = await leadership.settled_durably(leadership.end)
        if status is not SendStatus.SEND_OK:
            raise WriteUnknown(f"done here, but not in all in-sync replicas: {status.value}")
        return answer

    async def finished(answering: Awaitable[Answer]) -> Answer:
        return await settled(await answering)

    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        leadership.check_may_write()
        result = handler(connection, request)
        return settled(result) if result is None or isinstance(result, Command) else finished(result)

    return serve
