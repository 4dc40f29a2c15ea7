"""Handle FETCH (RayMQ's own); see `raymq.actors.wire.commands.fetch_commands`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.core.reading.fetch_session import FetchSession, QueueFetchResult
from raymq.actors.broker.core.reading.long_poll import ParkedRequest, QueueKey
from raymq.actors.broker.handlers.broker_command import Commands, reads
from raymq.actors.naming import check_group
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.fetch_commands import INDEX, MAX_ANSWER_BYTES, fetch_specs_steps
from raymq.actors.wire.frame import FLAG_EARLY, Command
from raymq.actors.wire.loop_queue import LoopQueue, call_or_fail
from raymq.actors.wire.server_connection import ServerConnection, discard_body
from raymq.actors.wire.stepwise_handlers import steps_handler
from raymq.storage.cooperative_steps import Steps
from raymq.storage.records.body_stripping import without_bodies

#: A fetch is parked at most this long, whatever its request says.
MAX_WAIT_SECONDS = 30.0
#: A message that arrives within this time of another may wait for the loop's next turn, and be batched with more.
_APART_SECONDS: Final = 250e-6


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core, turns = context.core, LoopQueue()

    def fetch_queues(connection: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        specs = yield from fetch_specs_steps(request)
        session, group = text_field(request, "session"), _group(request)
        limits = (
            max(1, int_field(request, "max_messages")),
            min(MAX_ANSWER_BYTES, max(1, int_field(request, "max_bytes"))),
        )
        wait = min(MAX_WAIT_SECONDS, connection.park_seconds, max(0.0, int_field(request, "wait_ms", 0) / 1000))
        context.polls.supersede(session)
        member = request.fields.get("member")
        check_crc = bool(request.fields.get("check_crc", True))
        fetch = FetchSession(context.core, specs, *limits, group, check_crc=check_crc)
        if group is not None and member is not None:
            context.groups.check_not_superseded(group, str(member))
            known = {queue: position for queue, position in fetch.positions.items() if core.has_queue(*queue)}
            context.groups.record_fetch(group, str(member), known)
        topics = [want.topic for want in specs]
        pending = _Asked(
            context, turns, connection, request, fetch, group, None if member is None else str(member), topics
        )
        goes_on = bool(request.fields.get("goes_on")) and connection.accepts_early_answers
        return pending.begin(session, wait, goes_on=goes_on, singly=goes_on and _may_come_singly(request))

    return {RequestCode.FETCH: reads(discard_body(steps_handler(fetch_queues)))}


@dataclass(slots=True, eq=False)
class _Asked:
    """One fetch in progress."""

    _context: BrokerContext
    _turns: LoopQueue
    _connection: ServerConnection
    _request: Command
    _fetch: FetchSession
    _group: str | None
    _member: str | None
    _topics: list[str]
    _has_turn: bool = False
    _taken_at: float = -math.inf
    _future: asyncio.Future[Command] = field(init=False)
    _parked: ParkedRequest = field(init=False)

    def begin(self, session: str, wait: float, *, goes_on: bool, singly: bool) -> Command | asyncio.Future[Command]:
        """Return the answer, or a future of the last answer.

        The future is done once a queue got messages, or the wait is over. With `goes_on` early answers carry the
        messages that arrive, and the future is done when the limits are used up or the wait is over. Cancelling the
        future ends the wait.
        """
        parts = self._fetch.read_available()
        if not wait or self._fetch.is_exhausted or self._fetch.is_stale or (parts and not goes_on):
            return self._answer(parts)
        polls = self._context.polls
        self._future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        deadline = polls.clock() + wait
        take_next = self._take_next if singly else None
        self._parked = polls.park(
            self._fetch.positions, deadline, self._woken, session=session, standing=goes_on, take_next=take_next
        )
        self._future.add_done_callback(lambda _: polls.remove(self._parked))
        self._answer_early(parts)
        return self._future

    def _woken(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._turns.add(self._turn)

    def _turn(self) -> None:
        """Read again after an arrival or the end of the wait."""
        self._has_turn = False
        call_or_fail(self._future, self._look_again)

    def _look_again(self) -> None:
        parked = self._parked
        if parked.superseded:  # a newer fetch of the session has replaced this one
            self._future.set_result(self._answer([]))
            return
        if self._group is not None:
            self._context.groups.check_not_superseded(self._group, self._member)
        if not parked.ended and not self._connection.writable.is_set():
            waiting = asyncio.ensure_future(self._connection.writable.wait())
            waiting.add_done_callback(lambda _: self._woken())
        else:
            arrived = parked.take_arrivals()
            parts = self._fetch.read_available(None if parked.ended and not arrived else arrived)
            if parked.ended or self._fetch.is_exhausted:
                self._future.set_result(self._answer(parts))
            else:
                self._answer_early(parts)

    def _is_superseded(self) -> bool:
        """Return True if a subscription of a higher version came meanwhile."""
        return (
            self._group is not None
            and self._member is not None
            and self._context.groups.is_superseded(self._group, self._member)
        )

    def _take_next(self, queue: QueueKey, offset: int, physical_offset: int, size: int) -> bool:
        """Answer with a newly stored message of a queue, if that is possible at once."""
        context, writer = self._context, self._connection.idle_writer
        if self._is_superseded():
            self._woken()
            return False
        if writer is None or self._has_turn or self._future.done():
            return False
        now = context.polls.clock()
        if now - self._taken_at < _APART_SECONDS:
            return False
        index = self._fetch.take_next(queue, offset, size)
        if index is None:
            return False
        self._taken_at = now
        head = bare.early_answer(self._request.opaque, INDEX.size + size)
        record = context.core.store.stored(physical_offset, size)
        writer.write_alone(b"".join((head, INDEX.pack(index), record)))
        if self._group is not None:
            context.statistics.get(self._group, queue[0], 1, size)
        if self._fetch.is_exhausted:
            self._woken()
        return True

    def _answer_early(self, parts: list[QueueFetchResult]) -> None:
        if parts:
            answer = self._answer(parts)
            answer.flag |= FLAG_EARLY
            self._connection.send(answer)
        if self._fetch.has_backlog:
            self._woken()

    def _answer(self, parts: list[QueueFetchResult]) -> Command:
        if self._request.fields.get("bodies") is False:
            for part in parts:
                part.pieces, part.sizes = without_bodies(part.pieces, part.sizes)
        if self._group is not None:
            for part in parts:
                if len(part.sizes):
                    size = int(part.sizes.sum())
                    self._context.statistics.get(self._group, self._topics[part.index], len(part.sizes), size)
                    self._context.statistics.delivered(part.pieces[0])
        fields = {"parts": [_packed(part) for part in parts], "epoch": self._context.core.store.epoch}
        pieces = [piece for part in parts for piece in part.pieces]
        return self._request.response(ResponseCode.SUCCESS, fields, pieces=pieces)


def _may_come_singly(request: Command) -> bool:
    """Return True if a message that arrives alone may be answered as it is."""
    return bool(request.fields.get("singly")) and request.fields.get("bodies") is not False


def _group(request: Command) -> str | None:
    return None if request.fields.get("group") is None else check_group(text_field(request, "group"))


def _packed(part: QueueFetchResult) -> list[object]:
    failure = None
    if part.error is not None:
        answer = error_codec.error_response(Command(RequestCode.FETCH), part.error)
        failure = [answer.fields, answer.remark]
    return [
        part.index,
        part.next_offset,
        part.min_offset,
        part.max_offset,
        part.sizes.astype("<i4").tobytes(),
        part.offsets.astype("<i8").tobytes(),
        failure,
    ]
