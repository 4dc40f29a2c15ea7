"""APPEND_RECORDS (ours): records of one queue that the sender has encoded, in one buffer."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import Numbers, RecordPositions, SendStatus
from raymq.actors.request_limits import MAX_MESSAGES, check_count
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Buffer, Command, Serialization
from raymq.actors.wire.response_validation import protocol_checked, text

#: The types of packed numbers in fields.
INT32: Final = np.dtype("<i4")
INT64: Final = np.dtype("<i8")


def append_command(
    topic: str,
    queue_id: int,
    records: Buffer,
    sizes: npt.NDArray[np.int32],
    *,
    delayed: bool = False,
    sequenced: bool = False,
) -> Command:
    """Return APPEND_RECORDS with records of one queue.

    The records are encoded by `raymq.storage.records.record.encode` or its batch forms.

    Args:
        sequenced: the first record has the sequence number with which its producer's batch begins
            (`records.producer_sequence`).
    """
    fields = {"topic": topic, "queue_id": queue_id, "sizes": pack(sizes, INT32), "delayed": delayed}
    if sequenced:
        fields["sequenced"] = True
    return Command(RequestCode.APPEND_RECORDS, fields, records, serialization=Serialization.MSGPACK)


@protocol_checked
def read_append_answer(answer: Command, records: int) -> tuple[SendStatus, RecordPositions]:
    """Return the status and the positions of the appended records from an answer.

    Raise ProtocolError if there are not as many positions as `records`.
    """
    fields = answer.fields
    placed = RecordPositions(
        text(fields["topic"]),
        np.frombuffer(fields["queue_ids"], INT32),
        np.frombuffer(fields["queue_offsets"], INT64),
        np.frombuffer(fields["physical_offsets"], INT64),
    )
    lengths = {len(placed.queue_ids), len(placed.queue_offsets), len(placed.physical_offsets)}
    if lengths != {records}:
        raise ValueError(f"{sorted(lengths)} positions for {records} records")
    return SendStatus(fields["status"]), placed


def appended_answer(request: Command, status: SendStatus, placed: RecordPositions) -> Command:
    """Return the answer to APPEND_RECORDS, with the positions of the records."""
    fields = {
        "status": status.value,
        "topic": placed.topic,
        "queue_ids": pack(placed.queue_ids, INT32),
        "queue_offsets": pack(placed.queue_offsets, INT64),
        "physical_offsets": pack(placed.physical_offsets, INT64),
    }
    return request.response(ResponseCode.SUCCESS, fields)


def pack(numbers: Numbers, dtype: np.dtype[Any]) -> bytes:
    """Return numbers as the bytes of a field."""
    return np.asarray(numbers, dtype).tobytes()


def read_sizes(request: Command) -> npt.NDArray[np.int32]:
    """Return the sizes of the records in the body, from the field `sizes`.

    Raises:
        InvalidInput: there is no such field, or it has too many sizes.
    """
    packed = request.fields.get("sizes")
    if not isinstance(packed, bytes) or len(packed) % 4 or not packed:
        raise InvalidInput("sizes", "the records' sizes, 4 bytes each, at least one", packed)
    sizes = np.frombuffer(packed, INT32)
    check_count("sizes", "records", len(sizes), MAX_MESSAGES)
    return sizes
