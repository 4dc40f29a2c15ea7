"""APPEND_ONE (ours): one record that its sender has made, as frequent and as quick as a request can be.

The frame's body is the record, which itself says its topic and queue; the header has no fields. Everything else, such
as delayed messages and batches, goes by APPEND_RECORDS. APPEND_ONE_SEQUENCED is that of idempotent producers: the
record says, too, which of its producer it is. All come to the same core.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Final

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.appending.admission import cause_of
from raymq.actors.errors import ProtocolError, RayMQError
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Buffer, Command
from raymq.actors.wire.server import Handler, ServerConnection
from raymq.storage.log.checking import Single
from raymq.storage.log.writing import Stored

#: An answer's body: the status' place in `_STATUSES`, queue offset, physical offset.
_PLACE: Final = struct.Struct(">Bqq")
_STATUSES: Final = tuple(SendStatus)
_SEND_OK: Final = _STATUSES.index(SendStatus.SEND_OK)


def read_place(body: Buffer) -> tuple[SendStatus, int, int]:
    """Status, queue offset and physical offset in an answer's body; ProtocolError."""
    try:
        status, queue_offset, physical_offset = _PLACE.unpack(body)
        return _STATUSES[status], queue_offset, physical_offset
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"no place in the answer: {error}") from error


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    return {
        RequestCode.APPEND_ONE: _AppendOne(context, context.core.append_one),
        RequestCode.APPEND_ONE_SEQUENCED: _AppendOne(context, context.core.append_one_sequenced),
    }


class _AppendOne:
    def __init__(self, context: BrokerContext, append: Callable[[Single, Stored | None], tuple[int, int]]) -> None:
        self._context = context
        self._append = append
        self._core = context.core
        #: Whether a record may be handed over and its sender be answered while it is being stored.
        self._prompt = context.durable is None and context.core.store.confirmed.at_once
        self._statistics = context.statistics

    def __call__(self, _: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        def store() -> Callable[[SendStatus], Command]:
            single = self._core.store.check_one(request.body)
            queue_offset, physical_offset = self._append(single, None)
            self._statistics.put(single.lane[0], 1, len(request.body))

            def answer(status: SendStatus) -> Command:
                place = _PLACE.pack(_STATUSES.index(status), queue_offset, physical_offset)
                return request.response(ResponseCode.SUCCESS, body=place)

            return answer

        return self._context.append(len(request.body), store)

    def promptly(self, body: memoryview, answer: Callable[[bytes], None]) -> bool:
        if not self._prompt:
            return False
        core, admission, polls, octets = self._core, self._core.admission, self._context.polls, len(body)

        def stored(queue_offset: int, physical_offset: int) -> None:
            polls.offer(single.lane, queue_offset, physical_offset, octets)
            answer(_PLACE.pack(_SEND_OK, queue_offset, physical_offset))

        try:
            admission.enter(octets)
            try:
                single = core.store.check_one(body)
                if not core.is_open(single.lane):  # a topic to be made and told to the name servers, or a refusal
                    return False
                self._append(single, stored)
            finally:
                admission.leave(octets)
        except RayMQError as error:
            self._statistics.refused(cause_of(error))
            raise
        self._statistics.put(single.lane[0], 1, octets)
        return True
