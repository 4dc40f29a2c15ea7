"""Re-encode a stored record with another queue and other properties."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import MessageIllegal
from raymq.storage.errors import InvalidInput
from raymq.storage.records import property_names as names
from raymq.storage.records.record import MAX_PROPERTIES_BYTES, Record, encode, encode_properties
from raymq.storage.store import AppendResult

#: Bytes of properties that a delayed message must leave free for the properties that its copies get.
PROPERTIES_RESERVE_BYTES: Final = 1_024
#: The digits of the largest queue id, 2**31 - 1.
_MAX_QUEUE_DIGITS: Final = 10
#: Properties that only RayMQ's own bookkeeping reads, and that later copies do not need.
_OF_BOOKKEEPING: Final = frozenset({names.PRODUCER_SEQUENCE, names.DIED_IN, names.REDRIVEN_FROM, names.DLQ_REASON})
#: Properties that brokers add to a message and that no consumer needs.
_OF_BROKERS: Final = frozenset({names.CLUSTER, names.MSG_REGION, names.TRACE_ON, names.WAIT})
#: The sets of properties that are dropped, in order, from a waiting copy that does not fit.
DROPPABLE_WAITING: Final = (frozenset({names.FAILURE}), _OF_BOOKKEEPING, _OF_BROKERS)
#: The same for a message of a delay level that is moved to the timer topic.
DROPPABLE_MOVED: Final = (*DROPPABLE_WAITING, frozenset({names.DELIVERED_FROM}))
#: The same for a delivered copy: also where it waited, and last the origin, by which a start detects its delivery.
DROPPABLE_DELIVERED: Final = (
    *DROPPABLE_WAITING,
    frozenset({names.REAL_TOPIC, names.REAL_QID, names.DELAY}),
    frozenset({names.DELIVERED_FROM}),
)
#: The same for a dead letter; the message itself always fits.
DROPPABLE_DEAD_LETTER: Final = (
    frozenset({names.PRODUCER_SEQUENCE, names.REDRIVEN_FROM, names.FAILURE}),
    _OF_BROKERS,
    frozenset({names.REAL_TOPIC, names.REAL_QID, names.DELAY}),
    frozenset({names.DLQ_REASON}),
    frozenset({names.DIED_IN}),
    frozenset({names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID}),
)


class RecordAppender(Protocol):
    """Appends `records` of these queues, and wakes the requests parked on them.

    `check_crc` and `again` are as in `Store.append`.
    """

    def __call__(
        self,
        records: bytes | memoryview,
        sizes: npt.NDArray[np.int32],
        *topic_queues: tuple[str, int],
        check_crc: bool = True,
        again: bool = False,
    ) -> AppendResult: ...


def reencode(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> bytes:
    """Return the bytes of `record` for another queue.

    Body, flags, born time and born host stay; the store sets the rest.
    """
    return _encode(record, topic, queue_id, encode_properties(properties))


def _encode(record: Record, topic: str, queue_id: int, properties: bytes) -> bytes:
    host, _, port = record.born_host.rpartition(":")
    return encode(
        topic,
        queue_id,
        record.body,
        properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=(host.strip("[]"), int(port)),
        reconsume_times=record.reconsume_times,
    )


def reencode_trimmed(
    record: Record, topic: str, queue_id: int, properties: dict[str, str], spare: Sequence[Collection[str]]
) -> bytes:
    """Do `reencode`, but drop properties if they are too long.

    The sets of `spare` are dropped in order, as many as necessary.

    Raises:
        InvalidInput: the properties do not fit even without all of these, or the record is invalid.
    """
    encoded = encode_properties(properties)
    for dropped in spare:
        if len(encoded) <= MAX_PROPERTIES_BYTES:
            break
        properties = {name: value for name, value in properties.items() if name not in dropped}
        encoded = encode_properties(properties)
    return _encode(record, topic, queue_id, encoded)


def parse_queue_id(text: str | None) -> int:
    """Return the queue id in a property, 0 if absent.

    Raise InvalidInput if it is invalid.
    """
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > _MAX_QUEUE_DIGITS:
        raise InvalidInput(names.REAL_QID, "a queue id", text)
    return int(text)


def check_properties_size(waiting: Mapping[str, str]) -> None:
    """Raise MessageIllegal unless a waiting message's properties leave room for its copies'."""
    limit = MAX_PROPERTIES_BYTES - PROPERTIES_RESERVE_BYTES
    length = len(encode_properties(waiting))
    if length > limit:
        raise MessageIllegal("properties", f"at most {limit} bytes in a delayed message", length)


def join(records: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int32]]:
    """Return records in one buffer, and their sizes."""
    return b"".join(records), np.fromiter(map(len, records), np.int32, len(records))
