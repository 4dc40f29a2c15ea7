"""FETCH, our own: one request for many queues, parked on the broker until one of them gets something."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raymq.actors.core.fetching import Part, Wanted, fetch
from raymq.actors.core.long_poll import QueueKey
from raymq.actors.core.sql_filter import compile_sql
from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.naming import check_group
from raymq.actors.wire import faults
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.context import BrokerContext, integer, text
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.pull import MAX_ANSWER_BYTES
from raymq.actors.wire.server import Handler, ServerConnection

#: A fetch is parked at most this long, whatever it asks for.
MAX_WAIT_SECONDS = 30.0


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
) -> Command:
    """FETCH. `session` names the caller: a newer fetch of the same session ends a parked one at once.

    With a `group` it is counted for it, and told where the group was reset to; `member` is the client id whose queues
    these are. Without `check_crc` the broker does not
    compare the bodies' checksums: the caller has to.
    """
    queues = [[w.topic, w.queue_id, w.offset, _packed_filter(w)] for w in wanted]
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
    return Command(RequestCode.FETCH, fields, serialization=Serialization.MSGPACK)


def read_fetched(answer: Command) -> list[Fetched]:
    """The parts of an answer to FETCH."""
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


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""

    async def fetch_queues(connection: ServerConnection, request: Command) -> Command:
        wanted = _wanted(request)
        session, group = text(request, "session"), _group(request)
        limits = (
            max(1, integer(request, "max_messages")),
            min(MAX_ANSWER_BYTES, max(1, integer(request, "max_bytes"))),
        )
        wait = min(MAX_WAIT_SECONDS, connection.park_seconds, max(0.0, integer(request, "wait_ms", 0) / 1000))
        check_crc = bool(request.fields.get("check_crc", True))
        context.polls.supersede(session)
        member = request.fields.get("member")
        if group is not None and member is not None:
            context.groups.fetched(group, str(member), [(w.topic, w.queue_id) for w in wanted])
        parts = fetch(context.core, wanted, *limits, group, check_crc=check_crc)
        if not parts and wait:
            arrival = await _parked(context, session, wanted, wait)
            parts = fetch(context.core, wanted, *limits, group, check_crc=check_crc, only=arrival)
        if group is not None:
            for part in parts:
                if len(part.sizes):
                    context.statistics.get(group, wanted[part.index].topic, len(part.sizes), int(part.sizes.sum()))
        fields = {"parts": [_packed(part) for part in parts]}
        return request.response(ResponseCode.SUCCESS, fields, pieces=[piece for part in parts for piece in part.pieces])

    return {RequestCode.FETCH: fetch_queues}


async def _parked(context: BrokerContext, session: str, wanted: Sequence[Wanted], wait: float) -> QueueKey | None:
    """Wait until one of the queues got something, the time is over, or the connection is gone (then: cancelled).

    Returns the queue that got something; None if none did.
    """
    woken = asyncio.Event()
    queues = [(w.topic, w.queue_id) for w in wanted]
    parked = context.polls.park(queues, context.polls.clock() + wait, woken.set, session=session)
    try:
        await woken.wait()
        return parked.arrival
    finally:
        context.polls.remove(parked)


def _group(request: Command) -> str | None:
    group = request.fields.get("group")
    return None if group is None else check_group(group)


def _wanted(request: Command) -> list[Wanted]:
    try:
        return [
            _one_wanted(str(topic), int(queue_id), int(offset), filtered)
            for topic, queue_id, offset, filtered in request.fields["queues"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        limit = "a list of [topic, queue id, offset, tags codes or an SQL92 expression or nil]"
        raise InvalidInput("queues", limit, str(error)) from error


def _packed_filter(want: Wanted) -> list[int] | str | None:
    if want.sql is not None:
        return want.sql.expression
    return None if want.tags_codes is None else list(want.tags_codes)


def _one_wanted(topic: str, queue_id: int, offset: int, filtered: list[int] | str | None) -> Wanted:
    if isinstance(filtered, str):
        return Wanted(topic, queue_id, offset, sql=compile_sql(filtered))
    return Wanted(topic, queue_id, offset, None if filtered is None else frozenset(map(int, filtered)))


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
