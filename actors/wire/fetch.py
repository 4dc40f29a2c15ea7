"""FETCH, our own: one request for many queues, parked on the broker until one of them gets something.

One that goes on is not over then: what comes is answered early, as it comes, until the request's limits or its time
are used up. So a consumer that keeps up costs its broker one answer per turn of the loop, and hardly a request.

A message that comes alone to an idle connection is answered while it is being stored, before its producer is: by a bare
frame, whose body is the queue's index among those of the request (i4) and the record.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.context import BrokerContext, integer, text
from raymq.actors.broker.core.reading.fetching import Fetch, Part, Wanted
from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.filter.sql_filter import MAX_CHARACTERS, compile_sql, compiling
from raymq.actors.naming import check_group
from raymq.actors.request_limits import MAX_FETCHED, check_count
from raymq.actors.wire import faults
from raymq.actors.wire import fixed_frame as bare
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import FLAG_EARLY, Command, Serialization
from raymq.actors.wire.pull import MAX_ANSWER_BYTES
from raymq.actors.wire.server import Handler, ServerConnection, without_body
from raymq.actors.wire.stepwise import in_steps
from raymq.actors.wire.told import reader
from raymq.actors.wire.wakeups import Turns
from raymq.storage.records.record import OFFSET_QUEUE_OFFSET
from raymq.storage.steps import Steps

#: A fetch is parked at most this long, whatever it asks for.
MAX_WAIT_SECONDS = 30.0
#: Of the different filter expressions of one request: reading one takes up to 40 us a character.
MAX_SQL_CHARACTERS: Final = 4 * MAX_CHARACTERS
#: A message that comes so soon after another one may wait for the loop's turn, and for more of them.
_APART_SECONDS: Final = 250e-6
#: In front of the record of a message that is answered alone.
_INDEX: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one queue of a fetch gave. `records` is a view of the answer: contiguous records, `sizes` of each."""

    index: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: memoryview
    sizes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    error: RayMQError | None


def fetch_command(
    session: str,
    wanted: Sequence[Wanted],
    max_messages: int,
    max_bytes: int,
    wait_seconds: float,
    group: str | None = None,
    member: str | None = None,
    *,
    check_crc: bool = True,
    goes_on: bool = False,
) -> Command:
    """FETCH. `session` names the caller: a newer fetch of the same session ends a parked one at once.

    With a `group` it is counted for it, and told where the group was reset to; `member` is the client id whose queues
    these are. Where a queue names another epoch than the broker's, the answer comes at once, and says that one.

    Without `check_crc` the broker does not compare the bodies' checksums: the caller has to. One that `goes_on` may
    have early answers; they and the last one together keep within the limits.
    """
    queues = [
        [w.topic, w.queue_id, w.offset, _packed_filter(w)]
        if w.epoch is None
        else [w.topic, w.queue_id, w.offset, _packed_filter(w), w.epoch]
        for w in wanted
    ]
    fields = {
        "session": session,
        "queues": queues,
        "max_messages": max_messages,
        "max_bytes": max_bytes,
        "wait_ms": int(wait_seconds * 1000),
        "group": group,
        "member": member,
        "check_crc": check_crc,
    }
    if any(w.incarnation is not None for w in wanted):
        fields["incarnations"] = [w.incarnation for w in wanted]
    if goes_on:
        fields["goes_on"] = fields["singly"] = True
    return Command(RequestCode.FETCH, fields, serialization=Serialization.MSGPACK)


def read_epoch(answer: Command) -> int | None:
    """The broker's recovery epoch in an answer to FETCH; None in one that is early, or from a broker without epochs."""
    return answer.fields.get("epoch")


@reader
def read_fetched(answer: Command) -> list[Fetched]:
    """The parts of an answer to FETCH."""
    if not answer.fields:
        index, record = read_one(memoryview(answer.body))
        (offset,) = _OFFSET.unpack_from(record, OFFSET_QUEUE_OFFSET)
        sizes_array, offsets_array = np.array((len(record),), np.int32), np.array((offset,))
        return [Fetched(index, offset + 1, 0, offset + 1, record, sizes_array, offsets_array, None)]
    body = memoryview(answer.body)
    parts = []
    position = 0
    for index, next_offset, low, high, sizes, offsets, told in answer.fields["parts"]:
        sizes_array = np.frombuffer(sizes, "<i4")
        end = position + int(sizes_array.sum(dtype=np.int64))
        error = None
        if told is not None:
            error = faults.to_error(Command(ResponseCode.SYSTEM_ERROR, told[0], remark=told[1]))
        parts.append(
            Fetched(
                index, next_offset, low, high, body[position:end], sizes_array, np.frombuffer(offsets, "<i8"), error
            )
        )
        position = end
    return parts


def read_one(body: memoryview) -> tuple[int, memoryview]:
    """Index of its queue and record of a message that was answered alone: by a bare frame of this body."""
    return _INDEX.unpack_from(body)[0], body[_INDEX.size :]


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core, turns = context.core, Turns()

    def fetch_queues(connection: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        wanted = yield from _reading_wanted(request)
        session, group = text(request, "session"), _group(request)
        limits = (
            max(1, integer(request, "max_messages")),
            min(MAX_ANSWER_BYTES, max(1, integer(request, "max_bytes"))),
        )
        wait = min(MAX_WAIT_SECONDS, connection.park_seconds, max(0.0, integer(request, "wait_ms", 0) / 1000))
        context.polls.supersede(session)
        member = request.fields.get("member")
        if group is not None and member is not None:
            known = [(w.topic, w.queue_id) for w in wanted if core.has_queue(w.topic, w.queue_id)]
            context.groups.fetched(group, str(member), known)
        check_crc = bool(request.fields.get("check_crc", True))
        fetch = Fetch(context.core, wanted, *limits, group, check_crc=check_crc)
        asked = _Asked(context, turns, connection, request, fetch, group, [want.topic for want in wanted])
        goes_on = bool(request.fields.get("goes_on")) and connection.takes_early_answers
        return asked.begin(session, wait, goes_on=goes_on, singly=goes_on and bool(request.fields.get("singly")))

    return {RequestCode.FETCH: without_body(in_steps(fetch_queues))}


class _Asked:
    """One fetch under way."""

    __slots__ = (
        *("_connection", "_context", "_fetch", "_future", "_group", "_has_turn", "_parked", "_request", "_taken_at"),
        *("_topics", "_turns"),
    )

    def __init__(
        self,
        context: BrokerContext,
        turns: Turns,
        connection: ServerConnection,
        request: Command,
        fetch: Fetch,
        group: str | None,
        topics: list[str],
    ) -> None:
        self._context = context
        self._turns = turns
        self._connection = connection
        self._request = request
        self._fetch = fetch
        self._group = group
        self._topics = topics
        self._has_turn = False
        self._taken_at = -math.inf

    def begin(self, session: str, wait: float, *, goes_on: bool, singly: bool) -> Command | asyncio.Future[Command]:
        """The answer, or what will be the last one: once a queue got something, the time is over or, where it
        goes on, the limits are used up. Cancelling the future ends the wait.
        """
        parts = self._fetch.look()
        if not wait or self._fetch.is_over or self._fetch.is_stale or (parts and not goes_on):
            return self._answer(parts)
        polls = self._context.polls
        self._future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        deadline = polls.clock() + wait
        take_next = self._take_next if singly else None
        self._parked = polls.park(
            self._fetch.queues, deadline, self._woken, session=session, standing=goes_on, take_next=take_next
        )
        self._future.add_done_callback(lambda _: polls.remove(self._parked))
        self._answer_early(parts)
        return self._future

    def _woken(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._turns.add(self._turn)

    def _turn(self) -> None:
        """Something arrived, or the wait is over."""
        self._has_turn = False
        if self._future.done():  # the connection was closed in between
            return
        try:
            self._look_again()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            self._future.set_exception(error)

    def _look_again(self) -> None:
        parked = self._parked
        if parked.superseded:  # nobody waits for it any more
            self._future.set_result(self._answer([]))
        elif not parked.ended and not self._connection.writable.is_set():
            waiting = asyncio.ensure_future(self._connection.writable.wait())
            waiting.add_done_callback(lambda _: self._woken())
        else:
            arrived = parked.take_arrivals()
            parts = self._fetch.look(None if parked.ended and not arrived else arrived)
            if parked.ended or self._fetch.is_over:
                self._future.set_result(self._answer(parts))
            else:
                self._answer_early(parts)

    def _take_next(self, queue: QueueKey, offset: int, physical_offset: int, size: int) -> bool:
        """A message of one of the queues was stored: answer it, if that can be done at once."""
        context, writer = self._context, self._connection.idle_writer
        if writer is None or self._has_turn or self._future.done():
            return False
        now = context.polls.clock()
        if now - self._taken_at < _APART_SECONDS:
            return False
        index = self._fetch.take_next(queue, offset, size)
        if index is None:
            return False
        self._taken_at = now
        head = bare.early_answer(self._request.opaque, _INDEX.size + size)
        record = context.core.store.stored(physical_offset, size)
        writer.write_alone(b"".join((head, _INDEX.pack(index), record)))
        if self._group is not None:
            context.statistics.get(self._group, queue[0], 1, size)
        if self._fetch.is_over:
            self._woken()
        return True

    def _answer_early(self, parts: list[Part]) -> None:
        if parts:
            answer = self._answer(parts)
            answer.flag |= FLAG_EARLY
            self._connection.send(answer)
        if self._fetch.is_behind:
            self._woken()

    def _answer(self, parts: list[Part]) -> Command:
        if self._group is not None:
            for part in parts:
                if len(part.sizes):
                    octets = int(part.sizes.sum())
                    self._context.statistics.get(self._group, self._topics[part.index], len(part.sizes), octets)
        fields = {"parts": [_packed(part) for part in parts], "epoch": self._context.core.store.epoch}
        pieces = [piece for part in parts for piece in part.pieces]
        return self._request.response(ResponseCode.SUCCESS, fields, pieces=pieces)


def _group(request: Command) -> str | None:
    return None if request.fields.get("group") is None else check_group(text(request, "group"))


def _reading_wanted(request: Command) -> Steps[list[Wanted]]:
    queues: Any = request.fields.get("queues")
    try:
        check_count("queues", "queues", len(queues), MAX_FETCHED)
        incarnations: Any = request.fields.get("incarnations") or [None] * len(queues)
        if len({(topic, queue_id) for topic, queue_id, *_ in queues}) < len(queues):
            raise InvalidInput("queues", "each queue once", f"{len(queues)} queues")
        expressions = {filtered for _, _, _, filtered, *_ in queues if isinstance(filtered, str)}
        characters = sum(map(len, expressions))
        if characters > MAX_SQL_CHARACTERS:
            raise InvalidInput("queues", f"at most {MAX_SQL_CHARACTERS} characters of SQL92 expressions", characters)
        for expression in expressions:
            yield from compiling(expression)
        return [
            _one_wanted(
                str(topic),
                int(queue_id),
                int(offset),
                filtered,
                *map(int, epoch),
                incarnation=None if made is None else int(made),
            )
            for (topic, queue_id, offset, filtered, *epoch), made in zip(queues, incarnations, strict=True)
        ]
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        limit = "a list of [topic, queue id, offset, tags codes or an SQL92 expression or nil], or with an epoch behind"
        raise InvalidInput("queues", limit, str(error)) from error


def _packed_filter(want: Wanted) -> list[int] | str | None:
    if want.sql is not None:
        return want.sql.expression
    return None if want.tags_codes is None else list(want.tags_codes)


def _one_wanted(
    topic: str,
    queue_id: int,
    offset: int,
    filtered: list[int] | str | None,
    epoch: int | None = None,
    *,
    incarnation: int | None = None,
) -> Wanted:
    sql = compile_sql(filtered) if isinstance(filtered, str) else None
    codes = None if filtered is None or isinstance(filtered, str) else frozenset(map(int, filtered))
    return Wanted(topic, queue_id, offset, codes, sql, epoch, incarnation)


def _packed(part: Part) -> list[object]:
    told = None
    if part.error is not None:
        answer = faults.to_response(Command(RequestCode.FETCH), part.error)
        told = [answer.fields, answer.remark]
    return [
        part.index,
        part.next_offset,
        part.min_offset,
        part.max_offset,
        part.sizes.astype("<i4").tobytes(),
        part.offsets.astype("<i8").tobytes(),
        told,
    ]
