"""Handle APPEND_ONE (RayMQ's own), the fast path for one record; see `append_one_commands`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers.broker_command import Commands, appends
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append_one_commands import PLACE, STATUSES
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.server_interface import InlineHandler
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    return {
        RequestCode.APPEND_ONE: appends(_AppendOne(context, sequenced=False)),
        RequestCode.APPEND_ONE_SEQUENCED: appends(_AppendOne(context, sequenced=True)),
    }


class _AppendOne(InlineHandler):
    def __init__(self, context: BrokerContext, *, sequenced: bool) -> None:
        self._context = context
        self._admission = context.append_admission
        self._core = context.core
        self._polls = context.polls
        self._sequenced = sequenced
        #: Whether a record may be delivered, and its sender answered, while it is being stored.
        self._prompt = context.durable is None and context.core.store.confirmed.is_immediate
        self._read_barrier = context.core.store.read_barrier

    def __call__(self, _: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        def store() -> Callable[[SendStatus], Command]:
            single = self._core.store.check_one(request.body)
            place = self._core.append_one(single, sequenced=self._sequenced)
            self._context.statistics.put(single.topic_queue[0], 1, len(request.body))
            return lambda status: request.response(ResponseCode.SUCCESS, body=_encode(place, status))

        return self._context.append(len(request.body), store)

    def try_answer_inline(self, body: memoryview, answer: Callable[[bytes], None]) -> bool | SyncCallbackFuture[bytes]:
        replica_acks = None if self._prompt else self._context.replica_acks()
        if self._read_barrier.is_active or not (self._prompt or replica_acks):
            return False
        core, size = self._core, len(body)
        pending: SyncCallbackFuture[bytes] | None = None
        # As `AppendScope`, which would cost as much as the record's way into the log.
        log_end = self._admission.enter(size)
        try:
            single = core.store.check_one(body)
            if not core.is_open(single.topic_queue):  # the topic must be created and announced, or the append refused
                return False
            place = core.write_one(single, sequenced=self._sequenced)
            try:
                if replica_acks is not None:
                    pending = replica_acks.answer(partial(_encode, place))
                else:
                    self._polls.offer(single.topic_queue, *place, size)
                    answer(_encode(place, SendStatus.SEND_OK))
            finally:
                core.dispatch_one(single)
        except BaseException as error:
            self._admission.failed(error, log_end)
            raise
        finally:
            if pending is None:
                self._admission.leave(size)
            self._polls.end_offer()  # a duplicate causes no arrival, nor does a failure
        self._context.statistics.put(single.topic_queue[0], 1, size)
        if pending is None:
            return True
        pending.add_sync_callback(lambda _: self._admission.leave(size))
        return pending


def _encode(place: tuple[int, int], status: SendStatus) -> bytes:
    return PLACE.pack(STATUSES.index(status), *place)
