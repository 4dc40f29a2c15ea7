"""APPEND_ONE (ours): the quick way of one record into the store; see `raymq.actors.wire.commands.append_one`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, Protocol

from raymq.actors.broker.context import BrokerContext, Copies
from raymq.actors.broker.core.appending.append_under_way import AppendUnderWay
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.append_one import PLACE, STATUSES
from raymq.actors.wire.frame import Command
from raymq.actors.wire.host import PromptHandler
from raymq.actors.wire.prompt_future import PromptFuture
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.storage.log.checking import Single
from raymq.storage.log.writing import Stored

_SEND_OK: Final = STATUSES.index(SendStatus.SEND_OK)


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    return {
        RequestCode.APPEND_ONE: _AppendOne(context, context.core.append_one),
        RequestCode.APPEND_ONE_SEQUENCED: _AppendOne(context, context.core.append_one_sequenced),
    }


class _Append(Protocol):
    def __call__(self, single: Single, stored: Stored | None = None, *, is_open: bool = False) -> tuple[int, int]:
        """As `BrokerCore.append_one`."""


class _AppendOne(PromptHandler):
    def __init__(self, context: BrokerContext, append: _Append) -> None:
        self._context = context
        self._door = context.door
        self._append = append
        self._core = context.core
        #: Whether a record may be handed over and its sender be answered while it is being stored.
        self._prompt = context.durable is None and context.core.store.confirmed.at_once
        self._veils = context.core.store.veils
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

    def promptly(self, body: memoryview, answer: Callable[[bytes], None]) -> bool | PromptFuture[bytes]:
        if self._veils.are_down:
            return False
        if not self._prompt:
            copies = self._context.copies()
            return copies is not None and self._copied(body, copies)
        core, polls, size = self._core, self._context.polls, len(body)

        def stored(queue_offset: int, physical_offset: int) -> None:
            polls.offer(single.topic_queue, queue_offset, physical_offset, size)
            answer(PLACE.pack(_SEND_OK, queue_offset, physical_offset))

        door = self._door
        log_end = door.enter(size)  # as `AppendUnderWay`, which would cost as much as the record's way into the log
        try:
            single = core.store.check_one(body)
            if not core.is_open(single.topic_queue):  # a topic to be made and told to the name servers, or a refusal
                return False
            self._append(single, stored, is_open=True)
        except BaseException as error:
            door.failed(error, log_end)
            raise
        finally:
            door.leave(size)
            polls.end_offer()  # no arrival came of a number that is here already, nor of a failure
        self._statistics.put(single.topic_queue[0], 1, size)
        return True

    def _copied(self, body: memoryview, copies: Copies) -> PromptFuture[bytes] | Literal[False]:
        """`promptly`, where the others have to have it first."""
        core, size = self._core, len(body)
        with AppendUnderWay(self._door, size) as under_way:
            single = core.store.check_one(body)
            if not core.is_open(single.topic_queue):
                return False
            place = self._append(single, copies.written, is_open=True)
            answer = copies.answer(lambda status: PLACE.pack(STATUSES.index(status), *place))
            leave = under_way.stay()
            answer.when_done(lambda _: leave())
        self._statistics.put(single.topic_queue[0], 1, size)
        return answer
