"""FETCH, our own: one request for many queues, parked on the broker until one of them gets something.

One that goes on is not over then: what comes is answered early, as it comes, until the request's limits or its time
are used up. So a consumer that keeps up costs its broker one answer per turn of the loop, and hardly a request.

A message that comes alone to an idle connection is answered while it is being stored, before its producer is: by a bare
frame, whose body is the queue's index among those of the request (i4) and the record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import InvalidInput, ProtocolError, RayMQError
from raymq.actors.filter.sql_filter import MAX_CHARACTERS, compile_sql, compiling
from raymq.actors.filter.wanted import Wanted
from raymq.actors.request_limits import MAX_FETCHED, check_count
from raymq.actors.wire import faults
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import MOST, number, reader
from raymq.storage.records.record import MIN_RECORD_BYTES, OFFSET_QUEUE_OFFSET
from raymq.storage.steps import Steps

#: One answer carries at most this many bytes of records (one larger record may exceed it; a frame has 16 MiB).
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
#: Of the different filter expressions of one request: reading one takes up to 40 us a character.
MAX_SQL_CHARACTERS: Final = 4 * MAX_CHARACTERS
#: In front of the record of a message that is answered alone.
INDEX: Final = struct.Struct(">i")
_LEAST_ALONE: Final = INDEX.size + MIN_RECORD_BYTES
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
    bodies: bool = True,
) -> Command:
    """FETCH. `session` names the caller: a newer fetch of the same session ends a parked one at once.

    With a `group` it is counted for it, and told where the group was reset to; `member` is the client id whose queues
    these are. Where a queue names another epoch than the broker's, the answer comes at once, and says that one.

    Without `check_crc` the broker does not compare the bodies' checksums: the caller has to. One that `goes_on` may
    have early answers; they and the last one together keep within the limits.

    Without `bodies` the records come with empty ones; the limits count them as they are stored.
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
    if not bodies:
        fields["bodies"] = False
    return Command(RequestCode.FETCH, fields, serialization=Serialization.MSGPACK)


def read_epoch(answer: Command) -> int | None:
    """The broker's recovery epoch in an answer to FETCH; None in one that is early, or from a broker without epochs."""
    epoch: Any = answer.fields.get("epoch")
    return None if epoch is None else number(epoch)


@reader
def read_fetched(answer: Command, queues: int = MAX_FETCHED) -> list[Fetched]:
    """The parts of an answer to a FETCH of so many queues; ProtocolError if it is none."""
    if not answer.fields:
        index, record = read_one(memoryview(answer.body), queues)
        (offset,) = _OFFSET.unpack_from(record, OFFSET_QUEUE_OFFSET)
        sizes_array, offsets_array = np.array((len(record),), np.int32), np.array((offset,))
        return [Fetched(index, offset + 1, 0, offset + 1, record, sizes_array, offsets_array, None)]
    body = memoryview(answer.body)
    parts = []
    position = 0
    for index, next_offset, low, high, sizes, offsets, told in answer.fields["parts"]:
        if type(index) is not int or not 0 <= index < queues:
            raise ValueError(f"a part of queue {index!r:.40}, where {queues} were asked for")
        for offset in (next_offset, low, high):
            if type(offset) is not int or not 0 <= offset <= MOST:
                raise ValueError(f"no offset: {offset!r:.40}")
        sizes_array, offsets_array = np.frombuffer(sizes, "<i4"), np.frombuffer(offsets, "<i8")
        end = position + int(sizes_array.sum(dtype=np.int64))
        if len(offsets_array) != len(sizes_array) or not position <= end <= len(body):
            raise ValueError(f"records of {end - position} bytes, where {len(body) - position} are left")
        error = None
        if told is not None:
            error = faults.to_error(Command(ResponseCode.SYSTEM_ERROR, told[0], remark=told[1]))
        parts.append(Fetched(index, next_offset, low, high, body[position:end], sizes_array, offsets_array, error))
        position = end
    return parts


def read_one(body: memoryview, queues: int) -> tuple[int, memoryview]:
    """Index of its queue and record of a message that was answered alone: by a bare frame of this body.

    ProtocolError: it is too short for one, or of none of as many queues as were asked for.
    """
    if len(body) < _LEAST_ALONE:
        raise ProtocolError(f"an answer of {len(body)} bytes has no message")
    (index,) = INDEX.unpack_from(body)
    if not 0 <= index < queues:
        raise ProtocolError(f"an answer with a message of queue {index}, where {queues} were asked for")
    return index, body[INDEX.size :]


def reading_wanted(request: Command) -> Steps[list[Wanted]]:
    """The queues that a request names, read in steps; InvalidInput where they are none, or too many."""
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
