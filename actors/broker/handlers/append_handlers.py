"""Handle APPEND_RECORDS and APPEND_ONE (RayMQ's own): store records of one queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.handlers.broker_command import Commands, appends
from raymq.actors.errors import InvalidInput
from raymq.actors.naming import HALF_TOPIC
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append_commands import appended_answer, read_sizes
from raymq.actors.wire.commands.append_one_commands import PLACE, STATUSES
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.server_interface import InlineHandler
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture

#: How many records of one request may be delayed, by a time or a level: each is encoded again, in some 25 us of the
#: loop, and RayMQ's producers send one at most.
MAX_DELAYED: Final = 100
_SEND_OK: Final = STATUSES.index(SendStatus.SEND_OK)


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core = context.core

    def append(_: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        topic, queue_id = text_field(request, "topic"), int_field(request, "queue_id")
        delayed = bool(request.fields.get("delayed"))
        sizes = read_sizes(request)
        if delayed and len(sizes) > MAX_DELAYED:
            raise InvalidInput("sizes", f"at most {MAX_DELAYED} delayed records", len(sizes))
        sequenced = bool(request.fields.get("sequenced"))

        def store() -> Callable[[SendStatus], Command]:
            records = memoryview(request.body)
            placed = core.append(topic, queue_id, records, sizes, delayed=delayed, sequenced=sequenced)
            counted = HALF_TOPIC if placed.topic == HALF_TOPIC else topic  # its commit counts for the topic
            context.statistics.put(counted, len(sizes), len(request.body))
            return lambda status: appended_answer(request, status, placed)

        return context.append(len(request.body), store)

    return {
        RequestCode.APPEND_RECORDS: appends(append),
        RequestCode.APPEND_ONE: appends(_AppendOne(context, sequenced=False)),
        RequestCode.APPEND_ONE_SEQUENCED: appends(_AppendOne(context, sequenced=True)),
    }


class _AppendOne(InlineHandler):
    """APPEND_ONE, the fast lane for one record; see `append_one_commands`."""

    def __init__(self, context: BrokerContext, *, sequenced: bool) -> None:
        self._context = context
        self._admission = context.append_admission
        self._core = context.core
        self._polls = context.polls
        self._sequenced = sequenced
        #: Whether a record may be delivered, and its sender answered, while it is being stored.
        self._prompt = context.acks.is_immediate
        self._replica_acks = context.acks.inline
        self._read_barrier = context.core.store.read_barrier

    def __call__(self, _: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        def store() -> Callable[[SendStatus], Command]:
            single = self._core.store.check_one(request.body)
            place = self._core.append_one(single, sequenced=self._sequenced)
            self._context.statistics.put(single.topic_queue[0], 1, len(request.body))
            return lambda status: request.response(ResponseCode.SUCCESS, body=_encode(place, status))

        return self._context.append(len(request.body), store)

    def try_answer_inline(self, body: memoryview, answer: Callable[[bytes], None]) -> bool | SyncCallbackFuture[bytes]:
        replica_acks = None if self._prompt else self._replica_acks
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
                    pending.add_sync_callback(partial(self._leave, size))
                else:
                    self._polls.offer(single.topic_queue, *place, size)
                    answer(PLACE.pack(_SEND_OK, *place))
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
        return True if pending is None else pending

    def _leave(self, size: int, _: object) -> None:
        self._admission.leave(size)


def _encode(place: tuple[int, int], status: SendStatus) -> bytes:
    return PLACE.pack(STATUSES.index(status), *place)
