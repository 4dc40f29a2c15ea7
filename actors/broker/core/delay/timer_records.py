"""What the records of the timer topic say, and the properties by which they say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.actors.broker.core.copies.rewriting import check_room
from raymq.actors.broker.core.delay.delivered import origin_of
from raymq.actors.errors import MessageIllegal
from raymq.actors.naming import TIMER_TOPIC
from raymq.storage.records import batch as record_batch
from raymq.storage.records import limits
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import properties_of_batch
from raymq.storage.records.record import encode_properties
from raymq.storage.timers.entry import ENTRY, HOUR_MS, Entries, EntryKind, key_of

#: Where all of them wait.
TIMER_QUEUE: Final = (TIMER_TOPIC, 0)
#: The level that `DELIVERED_FROM` names for these messages: no delay level has it.
TIMER_LEVEL: Final = 0
#: How far ahead a message may be due.
MAX_AHEAD_MS: Final = limits.MOST_DAYS_AHEAD * 24 * HOUR_MS
#: A due time from here on, in some thousand years, is none that anybody named.
_NEVER_MS: Final = 10**14


def due_of(told: Mapping[str, str], now_ms: int) -> int | None:
    """When a message with these properties is due, at the earliest at 0; None: it names no time.

    Raises:
        MessageIllegal: a time is no number, or too far ahead.
    """
    for name, unit_ms, since_ms in (
        (names.TIMER_DELAY_SEC, 1_000, now_ms),
        (names.TIMER_DELAY_MS, 1, now_ms),
        (names.TIMER_DELIVER_MS, 1, 0),
    ):
        text = told.get(name)
        if text is None:
            continue
        try:
            due_ms = since_ms + int(text) * unit_ms
        except ValueError:
            raise MessageIllegal(name, "a whole number", text) from None
        if due_ms > now_ms + MAX_AHEAD_MS:
            raise MessageIllegal(name, f"at most {limits.MOST_DAYS_AHEAD} days ahead", text)
        return max(0, due_ms)
    return None


def waiting_properties(told: Mapping[str, str], topic: str, queue_id: int, due_ms: int) -> dict[str, str]:
    """The properties of what waits for (`topic`, `queue_id`). MessageIllegal: there is no room for them."""
    kept = {name: value for name, value in told.items() if name != names.DELIVERED_FROM}
    kept |= {names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id), names.TIMER_OUT_MS: str(due_ms)}
    check_room(kept)
    return kept


def moved_properties(told: Mapping[str, str], due_ms: int, origin: str) -> dict[str, str]:
    """The properties of what waited a delay level, as those say that it `told`, and is to wait for that time."""
    kept = {name: value for name, value in told.items() if name != names.TIMER_DEL_UNIQKEY}
    return kept | {names.TIMER_OUT_MS: str(min(due_ms, _NEVER_MS - 1)), names.DELIVERED_FROM: origin}


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Messages of that key that are due then, and came before this one, are not to be delivered."""

    key: int
    due_ms: int
    queue_offset: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class Told:
    """What records of the timer topic say: these wait, these were withdrawn, these moved, these say nothing."""

    waits: Entries
    withdrawals: Sequence[Withdrawal]
    moved: Entries
    silent: Entries


def read_waiting(records: memoryview, sizes: npt.NDArray[np.int32], queue_offsets: npt.NDArray[np.int64]) -> Told:
    """What contiguous records of the timer queue say; those that name no time that can be say nothing."""
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
        key_of(delete_key(topic, unique_key if delete is None else withdrawn_key(topic, delete)))
        for topic, unique_key, delete in zip(topics, unique_keys, deletes, strict=True)
    ]
    entries["size"] = sizes
    entries["kind"] = EntryKind.WAITS
    is_delete = np.array([delete is not None for delete in deletes])
    withdrawals = [
        Withdrawal(*(int(entry[name]) for name in ("key", "due_ms", "queue_offset", "physical_offset")))
        for entry in entries[is_delete & (due_ms >= 0)]
    ]
    has_moved = (moved_from >= 0) & (due_ms >= 0)
    moved = entries[has_moved]
    moved["kind"] = EntryKind.MOVED
    moved["queue_offset"] = moved_from[has_moved]
    return Told(entries[~is_delete & (due_ms >= 0)], withdrawals, moved, entries[due_ms < 0])


def _moved_from(text: str | None, offset: int) -> int:
    """Under which offset the message at `offset` of the timer queue waited before, -1 if it always waited there."""
    origin = None if text is None else origin_of({names.DELIVERED_FROM: text})
    return origin.offset if origin is not None and origin.level == TIMER_LEVEL and origin.offset < offset else -1


def delete_key(topic: str | None, unique_key: str | None) -> str:
    """What a waiting message is called by that is to be withdrawn."""
    return f"{topic}_{unique_key}"


def withdrawn_key(topic: str | None, told: str) -> str:
    """The unique key of the message of a topic that a record withdraws, which calls it `told`.

    RocketMQ's brokers write "<topic>+<unique key>"; those before 5.3 had other forms, the unique key alone among them.
    """
    separator = "+" if told.startswith(f"{topic}+") else "_"
    return told.removeprefix(f"{topic}{separator}")


def origins_of(entries: Entries) -> list[bytes]:
    """The property that says what a copy was made from, of each, as it is stored."""
    pattern = encode_properties({names.DELIVERED_FROM: f"{TIMER_LEVEL}:%d"})
    return [pattern % offset for offset in entries["queue_offset"].tolist()]


def numbers(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Decimal numbers; -1 for what is none."""
    return np.array(
        [int(text) if text is not None and text.isdecimal() and len(text) < 19 else -1 for text in texts.to_pylist()],
        np.int64,
    )
