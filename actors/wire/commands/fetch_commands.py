"""FETCH (ours): one request for many queues, parked until a queue gets a message.

It is parked on the broker. A fetch that `goes_on` does not end with the first messages: the broker sends them as early
answers, as they arrive, until the request's limits or its time are used up. So a consumer without a backlog costs its
broker one answer per iteration of the loop, and few requests.

A single message for an idle connection is sent while it is being stored, before its producer gets its answer. It is
sent as a bare frame, whose body is the queue's index among those of the request (i4) and the record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import InvalidInput, ProtocolError, RayMQError
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.sql_filter import MAX_CHARACTERS, compile_sql, compile_sql_steps
from raymq.actors.request_limits import MAX_FETCHED, check_count
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import MAX_INT64, number, protocol_checked
from raymq.storage.cooperative_steps import Steps
from raymq.storage.records.record import MIN_RECORD_BYTES, OFFSET_QUEUE_OFFSET

#: One answer has at most this many bytes of records (one larger record may exceed it; a frame has 16 MiB).
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
#: The most characters of the different filter expressions of one request: compiling takes up to 40 us a character.
MAX_SQL_CHARACTERS: Final = 4 * MAX_CHARACTERS
#: The queue index in front of the record in a single-message answer.
INDEX: Final = struct.Struct(">i")
_LEAST_ALONE: Final = INDEX.size + MIN_RECORD_BYTES
_OFFSET: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one queue of a fetch.

    `records` is a view of the answer: contiguous records, with the length of each in `sizes`.
    """

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
    specs: Sequence[FetchSpec],
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
    """Return FETCH. A newer fetch of the same `session` ends a parked one at once.

    With a `group` the messages are counted for the group, and the answer has the offset to which the group was reset;
    `member` is the client id that the queues are assigned to. If a queue names another epoch than the broker's, the
    answer comes at once and has the broker's epoch.

    Without `check_crc` the broker does not verify the bodies' checksums: the caller has to. With `goes_on` there may be
    early answers; these and the last answer together stay within the limits.

    Without `bodies` the records have empty bodies; the limits count their stored sizes.
    """
    queues = [
        [w.topic, w.queue_id, w.offset, _packed_filter(w)]
        if w.epoch is None
        else [w.topic, w.queue_id, w.offset, _packed_filter(w), w.epoch]
        for w in specs
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
    if any(w.incarnation is not None for w in specs):
        fields["incarnations"] = [w.incarnation for w in specs]
    if goes_on:
        fields["goes_on"] = fields["singly"] = True
    if not bodies:
        fields["bodies"] = False
    return Command(RequestCode.FETCH, fields, serialization=Serialization.MSGPACK)


def read_epoch(answer: Command) -> int | None:
    """Return the broker's recovery epoch in an answer to FETCH.

    It is None in an early answer, or from a broker without epochs.
    """
    epoch: Any = answer.fields.get("epoch")
    return None if epoch is None else number(epoch)


@protocol_checked
def read_fetched(answer: Command, queues: int = MAX_FETCHED) -> list[Fetched]:
    """Return the parts of an answer to a FETCH of `queues` queues.

    Raises:
        ProtocolError: the answer is invalid.
    """
    if not answer.fields:
        index, record = read_single_message(memoryview(answer.body), queues)
        (offset,) = _OFFSET.unpack_from(record, OFFSET_QUEUE_OFFSET)
        sizes_array, offsets_array = np.array((len(record),), np.int32), np.array((offset,))
        return [Fetched(index, offset + 1, 0, offset + 1, record, sizes_array, offsets_array, None)]
    body = memoryview(answer.body)
    parts = []
    position = 0
    for index, next_offset, low, high, sizes, offsets, failure in answer.fields["parts"]:
        if type(index) is not int or not 0 <= index < queues:
            raise ValueError(f"a part of queue index {index!r:.40}, but {queues} queues were requested")
        for offset in (next_offset, low, high):
            if type(offset) is not int or not 0 <= offset <= MAX_INT64:
                raise ValueError(f"not an offset: {offset!r:.40}")
        sizes_array, offsets_array = np.frombuffer(sizes, "<i4"), np.frombuffer(offsets, "<i8")
        end = position + int(sizes_array.sum(dtype=np.int64))
        if len(offsets_array) != len(sizes_array) or not position <= end <= len(body):
            raise ValueError(f"records of {end - position} bytes, but {len(body) - position} bytes are left")
        error = None
        if failure is not None:
            error = error_codec.error_from_response(Command(ResponseCode.SYSTEM_ERROR, failure[0], remark=failure[1]))
        parts.append(Fetched(index, next_offset, low, high, body[position:end], sizes_array, offsets_array, error))
        position = end
    return parts


def read_single_message(body: memoryview, queues: int) -> tuple[int, memoryview]:
    """Return the queue index and the record in the body of a single-message answer.

    Raises:
        ProtocolError: the body is too short, or the index is not below `queues`.
    """
    if len(body) < _LEAST_ALONE:
        raise ProtocolError(f"an answer of {len(body)} bytes has no message")
    (index,) = INDEX.unpack_from(body)
    if not 0 <= index < queues:
        raise ProtocolError(f"an answer with a message of queue index {index}, but {queues} queues were requested")
    return index, body[INDEX.size :]


def fetch_specs_steps(request: Command) -> Steps[list[FetchSpec]]:
    """Read the queues that a request names, in steps.

    Raises:
        InvalidInput: the queues are invalid, or too many.
    """
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
            yield from compile_sql_steps(expression)
        return [
            _one_wanted(
                str(topic),
                int(queue_id),
                int(offset),
                filtered,
                *map(int, epoch),
                incarnation=None if incarnation is None else int(incarnation),
            )
            for (topic, queue_id, offset, filtered, *epoch), incarnation in zip(queues, incarnations, strict=True)
        ]
    except InvalidInput:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        limit = "a list of [topic, queue id, offset, tags codes or an SQL92 expression or nil], optionally an epoch"
        raise InvalidInput("queues", limit, str(error)) from error


def _packed_filter(want: FetchSpec) -> list[int] | str | None:
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
) -> FetchSpec:
    sql = compile_sql(filtered) if isinstance(filtered, str) else None
    codes = None if filtered is None or isinstance(filtered, str) else frozenset(map(int, filtered))
    return FetchSpec(topic, queue_id, offset, codes, sql, epoch, incarnation)
