"""Making a record anew from one that is stored: another queue, other properties, the same message."""

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

#: What is left free of a message's properties that waits first (a level, a time) for those that its copies get.
PROPERTIES_ROOM_BYTES: Final = 1_024
#: Of a queue id, at most 2**31 - 1.
_MAX_QUEUE_DIGITS: Final = 10
#: What only RayMQ's own bookkeeping reads, and not of copies that are made later.
_OF_BOOKKEEPING: Final = frozenset({names.PRODUCER_SEQUENCE, names.DIED_IN, names.REDRIVEN_FROM, names.DLQ_REASON})
#: What brokers add to a message, and no consumer needs.
_OF_BROKERS: Final = frozenset({names.CLUSTER, names.MSG_REGION, names.TRACE_ON, names.WAIT})
#: What is left out, one after the other, of a copy that waits and does not fit.
SPARE_WAITING: Final = (frozenset({names.FAILURE}), _OF_BOOKKEEPING, _OF_BROKERS)
#: The same of one that waits a level and is to wait for its time.
SPARE_MOVED: Final = (*SPARE_WAITING, frozenset({names.DELIVERED_FROM}))
#: The same of one that comes to its queue: where it waited, and last, by what a start knows that it came.
SPARE_DELIVERED: Final = (
    *SPARE_WAITING,
    frozenset({names.REAL_TOPIC, names.REAL_QID, names.DELAY}),
    frozenset({names.DELIVERED_FROM}),
)
#: The same of a dead letter, of which the message itself always fits.
SPARE_DEAD: Final = (
    frozenset({names.PRODUCER_SEQUENCE, names.REDRIVEN_FROM, names.FAILURE}),
    _OF_BROKERS,
    frozenset({names.REAL_TOPIC, names.REAL_QID, names.DELAY}),
    frozenset({names.DLQ_REASON}),
    frozenset({names.DIED_IN}),
    frozenset({names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID}),
)


class Append(Protocol):
    """Appends `records` of these queues and wakes who waits for them; `check_crc` and `again` as in `Store.append`."""

    def __call__(
        self,
        records: bytes | memoryview,
        sizes: npt.NDArray[np.int32],
        *topic_queues: tuple[str, int],
        check_crc: bool = True,
        again: bool = False,
    ) -> AppendResult: ...


def encode_again(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> bytes:
    """The bytes of `record` for another place. Body, flags, born time and born host stay; the store stamps the rest."""
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


def encode_fitting(
    record: Record, topic: str, queue_id: int, properties: dict[str, str], spare: Sequence[Collection[str]]
) -> bytes:
    """`encode_again`; properties that do not fit come without those of the first sets of `spare`, as many as it takes.

    Raises:
        InvalidInput: they do not fit without all of these, or the record has what no record may have.
    """
    encoded = encode_properties(properties)
    for dropped in spare:
        if len(encoded) <= MAX_PROPERTIES_BYTES:
            break
        properties = {name: value for name, value in properties.items() if name not in dropped}
        encoded = encode_properties(properties)
    return _encode(record, topic, queue_id, encoded)


def queue_number(text: str | None) -> int:
    """The queue id that a property tells, 0 where it is absent; InvalidInput if it is none."""
    if text is None:
        return 0
    if not text.isdecimal() or len(text) > _MAX_QUEUE_DIGITS:
        raise InvalidInput(names.REAL_QID, "a queue's number", text)
    return int(text)


def check_room(waiting: Mapping[str, str]) -> None:
    """MessageIllegal unless the properties of what is to wait leave room for those that its copies get."""
    limit = MAX_PROPERTIES_BYTES - PROPERTIES_ROOM_BYTES
    length = len(encode_properties(waiting))
    if length > limit:
        raise MessageIllegal("properties", f"at most {limit} bytes of a message that waits", length)


def join(records: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int32]]:
    """Records in one buffer, and their sizes."""
    return b"".join(records), np.fromiter(map(len, records), np.int32, len(records))
