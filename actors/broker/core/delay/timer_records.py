"""Parse the records of the timer topic, and build their properties. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.actors.broker.core.copies.record_copy import check_properties_size
from raymq.actors.broker.core.delay.delivery_recovery import parse_origin
from raymq.actors.errors import MessageIllegal
from raymq.actors.naming import TIMER_TOPIC
from raymq.storage.records import message_limits, record_batch
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import properties_of_batch
from raymq.storage.records.record import encode_properties
from raymq.storage.timers.timer_entry import ENTRY, HOUR_MS, Entries, EntryKind, key_of

#: The queue in which all timed messages wait.
TIMER_QUEUE: Final = (TIMER_TOPIC, 0)
#: The level in `DELIVERED_FROM` for these messages, which is not the number of a delay level.
TIMER_LEVEL: Final = 0
#: How far ahead a message may be due.
MAX_AHEAD_MS: Final = message_limits.MAX_DAYS_AHEAD * 24 * HOUR_MS
#: Due times from here on, some thousand years ahead, are invalid.
_NEVER_MS: Final = 10**14


def due_of(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return when a message with these properties is due, at least 0.

    The result is None if they name no time.

    Raises:
        MessageIllegal: a time is not a number, or is too far ahead.
    """
    for name, unit_ms, since_ms in (
        (names.TIMER_DELAY_SEC, 1_000, now_ms),
        (names.TIMER_DELAY_MS, 1, now_ms),
        (names.TIMER_DELIVER_MS, 1, 0),
    ):
        text = properties.get(name)
        if text is None:
            continue
        try:
            due_ms = since_ms + int(text) * unit_ms
        except ValueError:
            raise MessageIllegal(name, "a whole number", text) from None
        if due_ms > now_ms + MAX_AHEAD_MS:
            raise MessageIllegal(name, f"at most {message_limits.MAX_DAYS_AHEAD} days ahead", text)
        return max(0, due_ms)
    return None


def waiting_properties(properties: Mapping[str, str], topic: str, queue_id: int, due_ms: int) -> dict[str, str]:
    """Return the properties of a message that waits for (`topic`, `queue_id`).

    Raise MessageIllegal if there is no room for them.
    """
    retained = {name: value for name, value in properties.items() if name != names.DELIVERED_FROM}
    retained |= {names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id), names.TIMER_OUT_MS: str(due_ms)}
    check_properties_size(retained)
    return retained


def moved_properties(properties: Mapping[str, str], due_ms: int, origin: str) -> dict[str, str]:
    """Return the properties of a delay-level message that is moved to the timer topic.

    `properties` are its properties so far, `due_ms` is when it is due, and `origin` names its entry in the delay level.
    """
    retained = {name: value for name, value in properties.items() if name != names.TIMER_DEL_UNIQKEY}
    return retained | {names.TIMER_OUT_MS: str(min(due_ms, _NEVER_MS - 1)), names.DELIVERED_FROM: origin}


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A record that withdraws earlier messages with its key and due time."""

    key: int
    due_ms: int
    queue_offset: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class ParsedTimerRecords:
    """Parsed records of the timer topic.

    `waits` are waiting messages, `withdrawals` withdraw others, `moved` are the entries of messages that wait at
    another offset now, and `silent` are records without a valid time.
    """

    waits: Entries
    withdrawals: Sequence[Cancellation]
    moved: Entries
    silent: Entries


def parse_timer_records(
    records: memoryview, sizes: npt.NDArray[np.int32], queue_offsets: npt.NDArray[np.int64]
) -> ParsedTimerRecords:
    """Parse contiguous records of the timer queue."""
    batch = record_batch.parse(records, sizes, check_crc=False)
    columns = properties_of_batch(batch)
    due_ms = numbers(columns.last(names.TIMER_OUT_MS))
    topics = columns.last(names.REAL_TOPIC).to_pylist()
    unique_keys = columns.first(names.UNIQ_KEY).to_pylist()
    deletes = columns.last(names.TIMER_DEL_UNIQKEY).to_pylist()
    moved_from = np.array(
        [
            _moved_from(text, offset)
            for text, offset in zip(columns.last(names.DELIVERED_FROM).to_pylist(), queue_offsets.tolist(), strict=True)
        ],
        np.int64,
    )
    entries = np.empty(len(sizes), ENTRY)
    due_ms[due_ms >= _NEVER_MS] = -1
    entries["due_ms"] = due_ms
    entries["queue_offset"] = queue_offsets
    entries["physical_offset"] = batch.physical_offsets
    entries["key"] = [
        key_of(delete_key(topic, unique_key if delete is None else cancelled_key(topic, delete)))
        for topic, unique_key, delete in zip(topics, unique_keys, deletes, strict=True)
    ]
    entries["size"] = sizes
    entries["kind"] = EntryKind.WAITS
    is_delete = np.array([delete is not None for delete in deletes])
    withdrawals = [
        Cancellation(*(int(entry[name]) for name in ("key", "due_ms", "queue_offset", "physical_offset")))
        for entry in entries[is_delete & (due_ms >= 0)]
    ]
    has_moved = (moved_from >= 0) & (due_ms >= 0)
    moved = entries[has_moved]
    moved["kind"] = EntryKind.MOVED
    moved["queue_offset"] = moved_from[has_moved]
    return ParsedTimerRecords(entries[~is_delete & (due_ms >= 0)], withdrawals, moved, entries[due_ms < 0])


def _moved_from(text: str | None, offset: int) -> int:
    """Return the earlier offset of a message that was relocated within the timer queue.

    The result is -1 if the message always waited at `offset`.
    """
    origin = None if text is None else parse_origin({names.DELIVERED_FROM: text})
    return origin.offset if origin is not None and origin.level == TIMER_LEVEL and origin.offset < offset else -1


def delete_key(topic: str | None, unique_key: str | None) -> str:
    """Return the key that names a waiting message in a withdrawal."""
    return f"{topic}_{unique_key}"


def cancelled_key(topic: str | None, value: str) -> str:
    """Return the unique key of the message that a withdrawal with key `value` names.

    RocketMQ's brokers write "<topic>+<unique key>"; those before 5.3 used other forms, among them the unique key alone.
    """
    separator = "+" if value.startswith(f"{topic}+") else "_"
    return value.removeprefix(f"{topic}{separator}")


def origins_of(entries: Entries) -> list[bytes]:
    """Return, for the copy of each entry, the encoded property that names its origin."""
    pattern = encode_properties({names.DELIVERED_FROM: f"{TIMER_LEVEL}:%d"})
    return [pattern % offset for offset in entries["queue_offset"].tolist()]


def numbers(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Return decimal numbers; -1 for texts that are not numbers."""
    return np.array(
        [int(text) if text is not None and text.isdecimal() and len(text) < 19 else -1 for text in texts.to_pylist()],
        np.int64,
    )
