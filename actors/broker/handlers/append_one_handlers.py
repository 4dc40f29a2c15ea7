"""Handle APPEND_ONE (RayMQ's own), the fast path for one record; see `append_one_commands`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol

from raymq.actors.broker.acks import ReplicaAcks
from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.appending.append_scope import AppendScope
from raymq.actors.broker.handlers.broker_command import Commands, appends
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append_one_commands import PLACE, STATUSES
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.server_interface import InlineHandler
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture
from raymq.storage.log.message_writer import OnStored
from raymq.storage.log.record_checker import CheckedRecord

_SEND_OK: Final = STATUSES.index(SendStatus.SEND_OK)


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    return {
        RequestCode.APPEND_ONE: appends(_AppendOne(context, context.core.append_one)),
        RequestCode.APPEND_ONE_SEQUENCED: appends(_AppendOne(context, context.core.append_one_sequenced)),
    }


class _Append(Protocol):
    def __call__(
        self, single: CheckedRecord, stored: OnStored | None = None, *, is_open: bool = False
    ) -> tuple[int, int]:
        """Append as `BrokerCore.append_one` does."""


class _AppendOne(InlineHandler):
    def __init__(self, context: BrokerContext, append: _Append) -> None:
        self._context = context
        self._door = context.append_admission
        self._append = append
        self._core = context.core
        #: Whether a record may be delivered, and its sender answered, while it is being stored.
        self._prompt = context.acks.is_immediate
        self._replica_acks = context.acks.inline
        self._read_barrier = context.core.store.read_barrier
        self._statistics = context.statistics

    def __call__(self, _: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        def store() -> Callable[[SendStatus], Command]:
            single = self._core.store.check_one(request.body)
            queue_offset, physical_offset = self._append(single)
            self._statistics.put(single.topic_queue[0], 1, len(request.body))

            def answer(status: SendStatus) -> Command:
                place = PLACE.pack(STATUSES.index(status), queue_offset, physical_offset)
                return request.response(ResponseCode.SUCCESS, body=place)

            return answer

        return self._context.append(len(request.body), store)

    def try_answer_inline(self, body: memoryview, answer: Callable[[bytes], None]) -> bool | SyncCallbackFuture[bytes]:
        if self._read_barrier.is_active:
            return False
        if not self._prompt:
            return self._replica_acks is not None and self._copied(body, self._replica_acks)
        core, polls, size = self._core, self._context.polls, len(body)

        def stored(queue_offset: int, physical_offset: int) -> None:
            polls.offer(single.topic_queue, queue_offset, physical_offset, size)
            answer(PLACE.pack(_SEND_OK, queue_offset, physical_offset))

        append_admission = self._door
        log_end = append_admission.enter(
            size
        )  # as `AppendScope`, which would cost as much as the record's way into the log
        try:
            single = core.store.check_one(body)
            if not core.is_open(single.topic_queue):  # the topic must be created and announced, or the append refused
                return False
            self._append(single, stored, is_open=True)
        except BaseException as error:
            append_admission.failed(error, log_end)
            raise
        finally:
            append_admission.leave(size)
            polls.end_offer()  # a duplicate of a stored sequence number causes no arrival, nor does a failure
        self._statistics.put(single.topic_queue[0], 1, size)
        return True

    def _copied(self, body: memoryview, replica_acks: ReplicaAcks) -> SyncCallbackFuture[bytes] | Literal[False]:
        """Do `try_answer_inline` if replicas have to acknowledge the record first."""
        core, size = self._core, len(body)
        with AppendScope(self._door, size) as under_way:
            single = core.store.check_one(body)
            if not core.is_open(single.topic_queue):
                return False
            place = self._append(single, replica_acks.written, is_open=True)
            answer = replica_acks.answer(lambda status: PLACE.pack(STATUSES.index(status), *place))
            leave = under_way.extend()
            answer.add_sync_callback(lambda _: leave())
        self._statistics.put(single.topic_queue[0], 1, size)
        return answer
