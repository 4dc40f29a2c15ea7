"""Make and read the records of a transaction, in RocketMQ's format.

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC, with its topic and queue in REAL_TOPIC and REAL_QID. Its commit is a
record in the real topic with the physical offset of the half in its header. Each end, commit or rollback, is noted in
an operation record, whose body lists offsets of the half topic's queue. Source: RocketMQ's TransactionalMessageBridge,
TransactionalMessageUtil and EndTransactionProcessor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.core.appending.inbound_message import TIMER_NAMES, delay_level
from raymq.actors.broker.core.copies.record_copy import parse_queue_id
from raymq.actors.errors import MessageIllegal
from raymq.actors.naming import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from raymq.storage.records import property_names as names
from raymq.storage.records.record import (
    IPV6_SHIFT,
    OFFSET_QUEUE_OFFSET,
    OFFSET_STORE_TIMESTAMP,
    QUEUE_AND_PHYSICAL_OFFSET,
    STORE_TIMESTAMP_AND_HOST,
    SYS_FLAG_BORN_IPV6,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
    Record,
    encode,
    encode_properties,
    pack_host,
)

HALF_QUEUE: Final = (HALF_TOPIC, 0)
OP_QUEUE: Final = (OP_HALF_TOPIC, 0)
GIVEN_UP_QUEUE: Final = (CHECK_MAX_TIME_TOPIC, 0)
#: The tag of an operation record.
_OP_TAG: Final = "d"
#: The longest CHECK_IMMUNITY_TIME_IN_SECONDS, in digits: a longer one is no time.
_MAX_SECONDS_DIGITS: Final = 9
#: The mark of a copied half: queue offset and physical offset by which its producer knows it, and when it was stored.
_ORIGIN: Final = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})")
#: The mark of a half that was given up and resumed: the offsets of the given-up one.
_RESUMED: Final = re.compile(r"resumed:([0-9]{1,18}):([0-9]{1,18})")
#: Properties of a half that its commit does not have.
_OF_HALF: Final = frozenset({names.REAL_TOPIC, names.REAL_QID, names.PREPARED_AT, names.PRODUCER_SEQUENCE})


@dataclass(frozen=True, slots=True)
class HalfPosition:
    """The offsets of a half message in the half queue and in the log."""

    queue_offset: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The position and the store time, in ms, of a half that was stored anew."""

    position: HalfPosition
    stored_ms: int


def half_properties(told: Mapping[str, str], topic: str, queue_id: int) -> dict[str, str]:
    """Return the properties of a message that waits as a half for (`topic`, `queue_id`).

    Raise MessageIllegal if the message is delayed.
    """
    if delay_level(told) > 0 or any(name in told for name in TIMER_NAMES):
        raise MessageIllegal("properties", "no delay of a transactional message", "a delay")
    kept = {name: value for name, value in told.items() if name not in (names.DELAY, names.PREPARED_AT)}
    return kept | {
        names.TRANSACTION_ID: told.get(names.UNIQ_KEY, ""),
        names.REAL_TOPIC: topic,
        names.REAL_QID: str(queue_id),
    }


def without_transaction_flags(sys_flag: int) -> int:
    """Return a sys flag with which a half gets an entry in the half queue."""
    return sys_flag & ~SYS_FLAG_TRANSACTION_MASK


def real_queue(half: Record) -> tuple[str, int]:
    """Return the topic and queue id for which a half waits. Raise InvalidInput if invalid."""
    return half.properties.get(names.REAL_TOPIC, ""), parse_queue_id(half.properties.get(names.REAL_QID))


def committed_record(half: Record, topic_queue: tuple[str, int]) -> bytes:
    """Return the record that makes a half visible in its real queue."""
    kept = {name: value for name, value in half.properties.items() if name not in _OF_HALF}
    return _encode(half, topic_queue, kept, SYS_FLAG_TRANSACTION_COMMIT, half.physical_offset)


def stored_again(half: Record, topic_queue: tuple[str, int], origin: Origin, checks: int) -> bytes:
    """Return a copy of a half for another position or for the given-up halves.

    Args:
        checks: how often the producers were asked so far.

    Raises:
        InvalidInput: the properties have no room for those of a copy.
    """
    position = origin.position
    kept = half.properties | {
        names.TRANSACTION_CHECK_TIMES: str(checks),
        names.TRAN_PREPARED_QUEUE_OFFSET: str(position.queue_offset),
        names.PREPARED_AT: f"{position.queue_offset}:{position.physical_offset}:{origin.stored_ms}",
    }
    return _encode(half, topic_queue, kept, 0, 0)


def resumed_half(given_up: Record) -> bytes:
    """Return a new half, with no checks counted, of one that was given up."""
    kept = given_up.properties | {
        names.TRANSACTION_CHECK_TIMES: "0",
        names.PREPARED_AT: f"resumed:{given_up.queue_offset}:{given_up.physical_offset}",
    }
    kept.pop(names.TRAN_PREPARED_QUEUE_OFFSET, None)
    return _encode(given_up, HALF_QUEUE, kept, 0, 0)


def origin_of(copy: Record) -> Origin | None:
    """Return what a copied half says about the first one, else None."""
    found = _ORIGIN.fullmatch(copy.properties.get(names.PREPARED_AT, ""))
    return None if found is None else Origin(HalfPosition(int(found[1]), int(found[2])), int(found[3]))


def resumed_from(half: Record) -> HalfPosition | None:
    """Return the position of the given-up half that was resumed as this one, else None."""
    found = _RESUMED.fullmatch(half.properties.get(names.PREPARED_AT, ""))
    return None if found is None else HalfPosition(int(found[1]), int(found[2]))


def record_to_check(half: Record, topic_queue: tuple[str, int]) -> bytes:
    """Return a half as a check carries it: in its real queue, at its position."""
    kept = {name: value for name, value in half.properties.items() if name != names.PREPARED_AT}
    record = bytearray(_encode(half, topic_queue, kept, half.sys_flag & SYS_FLAG_TRANSACTION_MASK, 0))
    QUEUE_AND_PHYSICAL_OFFSET.pack_into(record, OFFSET_QUEUE_OFFSET, half.queue_offset, half.physical_offset)
    later = IPV6_SHIFT if half.sys_flag & SYS_FLAG_BORN_IPV6 else 0
    host, _, port = half.store_host.rpartition(":")
    stamp = half.store_timestamp_ms, pack_host(host, int(port))
    STORE_TIMESTAMP_AND_HOST.pack_into(record, OFFSET_STORE_TIMESTAMP + later, *stamp)
    return bytes(record)


def operation_record(offsets: Iterable[int], born_timestamp_ms: int, host: bytes) -> bytes:
    """Return the record that the transactions of these halves have ended."""
    body = "".join(f"{offset}," for offset in offsets).encode()
    properties = encode_properties({names.TAGS: _OP_TAG})
    return encode(*OP_QUEUE, body, properties, born_timestamp_ms=born_timestamp_ms, born_host=host)


def ended_by(operation: Record) -> list[int]:
    """Return the half offsets that an operation record lists; other records list none."""
    if operation.tags != _OP_TAG:
        return []
    texts = operation.body.decode("ascii", "replace").split(",")
    return [int(text) for text in texts if text.isdecimal() and len(text) <= 18]


def immunity_ms(half: Record) -> int | None:
    """Return the time before the first check that the producer set, in ms, or None."""
    text = half.properties.get(names.CHECK_IMMUNITY_TIME, "")
    return int(text) * 1000 if text.isdecimal() and len(text) <= _MAX_SECONDS_DIGITS else None


def _encode(half: Record, topic_queue: tuple[str, int], kept: Mapping[str, str], flag: int, prepared: int) -> bytes:
    host, _, port = half.born_host.rpartition(":")
    return encode(
        *topic_queue,
        half.body,
        encode_properties(kept),
        flag=half.flag,
        sys_flag=half.sys_flag & ~SYS_FLAG_TRANSACTION_MASK | flag,
        born_timestamp_ms=half.born_timestamp_ms,
        born_host=(host.strip("[]"), int(port)),
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=prepared,
    )
