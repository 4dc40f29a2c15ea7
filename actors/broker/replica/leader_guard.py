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

from raymq.actors.broker.handlers.broker_command import BrokerCommand, CommandKind, Commands
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replication.ack_rule import NOT_MASTER
from raymq.actors.errors import BrokerUnavailable, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture

_SUCCESSES: Final = frozenset({ResponseCode.SUCCESS})


def guarded_handlers(commands: Commands, leadership: Leadership) -> dict[int, Handler]:
    """Return the commands' handlers, guarded by the leadership according to their kinds."""
    return {code: _guarded(command, leadership) for code, command in commands.items()}


def _guarded(command: BrokerCommand, leadership: Leadership) -> Handler:
    serve = _GUARDS[command.kind](command.handler, leadership)
    if getattr(command.handler, "waits", False):
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


def _confirmed_read(handler: Handler, leadership: Leadership) -> Handler:
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


_GUARDS: Final[Mapping[CommandKind, Callable[[Handler, Leadership], Handler]]] = {
    CommandKind.READS: _read,
    CommandKind.READS_CONFIRMED: _confirmed_read,
    CommandKind.APPENDS: _append,
    CommandKind.CHANGES: _change,
    CommandKind.ADMINISTRATES: _read,
}
