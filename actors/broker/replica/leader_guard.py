"""Guard a master's commands: refuse them without a lease, answer them when safe.

An append answers by itself when its data are safe (`ReplicatedAcks`). Other changes, such as commits of offsets
and settings of topics, are answered once the group has them as safely as its policy promises. Reads of messages do not
wait: they see only confirmed messages. Reads of the state beside the log may see changes that may still be lost, so
answers on which other brokers act wait like a change. A parked read returns messages only if the broker is still
master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from raymq.actors.broker.acks import ReplicaAcks
from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.actors.broker.handlers.broker_command import BrokerCommand, CommandKind, Commands
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replication.ack_rule import NOT_MASTER
from raymq.actors.errors import BrokerUnavailable, StoreFollows, WriteUnknown
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture
from raymq.storage.histogram import Histogram
from raymq.storage.store import Store

#: How long a leader that steps down waits until running requests are answered: the next leader waits for it.
_DRAIN_SECONDS: Final = 0.5
_SUCCESSES: Final = frozenset({ResponseCode.SUCCESS})


class ReplicatedAcks:
    """The `Acks` of a group with replicas: the leadership of one epoch decides."""

    is_immediate = False
    drain_seconds = _DRAIN_SECONDS

    def __init__(self, leadership: Leadership, replication_address: str, handlers: Mapping[int, Handler]) -> None:
        """Create it once the leadership has its store.

        `handlers` are those that a broker has in every role.
        """
        self._leadership = leadership
        self._handlers = handlers
        self.epoch = leadership.epoch
        self.replication_address = replication_address
        self.replicate_seconds: Histogram | None = leadership.replicate_seconds
        self.inline: ReplicaAcks | None = leadership if leadership.acks_without_flush else None

    def start(self, wake: Callable[[Sequence[QueueKey]], None]) -> Callable[[Sequence[QueueKey]], None]:
        """Begin to ship the stream; return the listener of appends."""
        return self._leadership.start_replication(wake)

    def durable(self) -> Awaitable[SendStatus] | None:
        """Return the wait of `Leadership.durable`."""
        return self._leadership.durable()

    def answer(self, make: Callable[[SendStatus], Command]) -> Command | asyncio.Future[Command]:
        """Return the answer of the append just made; see `Acks`."""
        if self.inline is not None:
            return self.inline.answer(make)  # no other wait lies between the acknowledgement and the answer
        return asyncio.ensure_future(self._flushed(make))

    async def _flushed(self, make: Callable[[SendStatus], Command]) -> Command:
        return make(await self._leadership.settled_append())

    def guarded(self, commands: Commands) -> Mapping[int, Handler]:
        """Return the handlers of all commands, guarded by the leadership according to their kinds."""
        guarded = {code: _guarded(command, self._leadership) for code, command in commands.items()}
        return {**guarded, **self._handlers}

    async def close(self, store: Store) -> None:
        """Give in-sync replicas a moment to get everything, and close the store."""
        try:
            await self._leadership.finish()
        finally:
            self._leadership.detach_store()
            await asyncio.to_thread(store.close)


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


def not_master_handlers(name: str, why: Callable[[], str]) -> dict[int, Handler]:
    """Return the handlers of a broker that does not lead: they refuse every request.

    The error states that nothing was done; the client then looks for the master. `why` returns an additional reason.

    Pulls are refused by an error, too. RocketMQ's replicas answer them with "retry immediately" and with their own
    bounds: a client would retry without a pause, and might conclude that its queue has become shorter.
    """

    def refuse(_: ServerConnection, request: Command) -> Command:
        request.body = b""
        raise StoreFollows(f"{name}: this broker is not the master now: {why()}")

    return dict.fromkeys(RequestCode, refuse)
