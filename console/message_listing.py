"""List messages of a topic for one page.

The newest, those of a queue from an offset on, or those of a time.

The messages of a page are chosen by their metadata, without bodies; then only their bodies are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raymq.client import Admin, InvalidInput, MessageQueue, QueueNotFound
from raymq.client.admin.topic_reader import ReadPosition
from raymq.client.results import QueueStats
from raymq.console.body_view import preview_body

PAGE_MESSAGES: Final = 25
#: Queues that are read for the newest messages of a topic: the ones that were written to last.
_QUEUES: Final = 16
#: Messages of a time window that are put into order.
_WINDOW_MESSAGES: Final = 5_000
#: Where the newest body is larger than this, the list shows no bodies.
_LARGEST_PREVIEWED: Final = 256 << 10
#: Queue numbers have 32 bits.
_QUEUE_DIGITS: Final = 10
#: What an error shows of a queue's name that was asked for.
_SHOWN_CHARACTERS: Final = 200
_METADATA: Final = (
    *("topic", "broker", "queue_id", "offset", "message_id", "unique_key", "keys", "tags", "properties"),
    *("born_timestamp", "store_timestamp"),
)

Stats = Mapping[MessageQueue, QueueStats]
#: Offsets [first, behind) of each queue.
Ranges = Mapping[MessageQueue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages for one page, and what the reader should know about the choice."""

    messages: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    older: int | None = None
    newer: int | None = None


def queue_of(stats: Stats, topic: str, text: str) -> MessageQueue:
    """Return the queue of a text such as "broker-a:0".

    Raises:
        QueueNotFound: the topic has no such queue.
    """
    broker, _, number = text.rpartition(":")
    is_number = number.isdecimal() and len(number) <= _QUEUE_DIGITS
    queue = MessageQueue(topic, broker, int(number)) if is_number else None
    if queue is None or queue not in stats:
        raise QueueNotFound(f"{topic} has no queue {text[:_SHOWN_CHARACTERS]}")
    return queue


async def newest_messages(admin: Admin, topic: str, stats: Stats) -> MessagePage:
    """Return the newest messages of a topic, newest first."""
    with_messages = [queue for queue, each in stats.items() if each.max_offset > each.min_offset]
    chosen = sorted(with_messages, key=lambda queue: -stats[queue].last_store_timestamp)[:_QUEUES]
    ranges = {queue: _last(stats[queue], PAGE_MESSAGES) for queue in chosen}
    rows = await _metadata(admin, topic, ranges)
    rows.sort(key=lambda row: (row["store_timestamp"], row["offset"]), reverse=True)
    notes = []
    if len(with_messages) > _QUEUES:
        notes.append(f"the newest of the {_QUEUES} queues that were written to last; choose a queue for others")
    return await _with_bodies(admin, topic, rows[:PAGE_MESSAGES], notes)


async def queue_messages(admin: Admin, queue: MessageQueue, stats: Stats, offset: int | None) -> MessagePage:
    """Return the messages of a queue from an offset on, oldest first.

    None: the last ones.
    """
    low, high = stats[queue].min_offset, stats[queue].max_offset
    first = max(low, high - PAGE_MESSAGES) if offset is None else min(max(offset, low), high)
    notes = [] if offset is None or offset == first else [f"offset {offset} is not stored: from {first} on"]
    behind = min(first + PAGE_MESSAGES, high)
    rows = await _metadata(admin, queue.topic, {queue: (first, behind)} if behind > first else {})
    page = await _with_bodies(admin, queue.topic, rows, notes)
    return MessagePage(
        page.messages,
        page.notes,
        older=max(low, first - PAGE_MESSAGES) if first > low else None,
        newer=behind if behind < high else None,
    )


async def messages_at(admin: Admin, topic: str, begin: float, end: float) -> MessagePage:
    """Return the first messages that were stored in [begin, end), oldest first.

    Raises:
        InvalidInput: the window is empty.
    """
    if end <= begin:
        raise InvalidInput("to", "a time after `from`", end)
    rows = await _metadata(admin, topic, None, begin, end, _WINDOW_MESSAGES + 1)
    notes = []
    if len(rows) > _WINDOW_MESSAGES:
        notes.append(
            f"more than {_WINDOW_MESSAGES:,} messages were stored in this time; queues behind those are left out: "
            "choose a shorter time or a queue"
        )
    rows.sort(key=lambda row: (row["store_timestamp"], row["broker"], row["queue_id"], row["offset"]))
    if len(rows) > PAGE_MESSAGES:
        notes.append(f"the first {PAGE_MESSAGES} of {len(rows):,} messages")
    return await _with_bodies(admin, topic, rows[:PAGE_MESSAGES], notes)


def _last(stats: QueueStats, count: int) -> tuple[int, int]:
    return max(stats.min_offset, stats.max_offset - count), stats.max_offset


async def _metadata(
    admin: Admin,
    topic: str,
    ranges: Ranges | None,
    begin: float = 0.0,
    end: float = 0.0,
    max_rows: int | None = None,
) -> list[dict[str, Any]]:
    """Return messages without their bodies, of offsets by queue or of a time."""
    if ranges is not None and not ranges:
        return []
    start, stop = _positions(ranges, begin, end)
    table = await admin.aread_table(topic, start, stop, columns=_METADATA, max_rows=max_rows)
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"] or ())
        row["keys"] = row["keys"] or []
        row["born_timestamp"] = row["born_timestamp"].timestamp()
        row["store_timestamp"] = row["store_timestamp"].timestamp()
    return rows


def _positions(ranges: Ranges | None, begin: float, end: float) -> tuple[ReadPosition, ReadPosition]:
    if ranges is None:
        return begin, end
    return {queue: first for queue, (first, _) in ranges.items()}, {
        queue: behind for queue, (_, behind) in ranges.items()
    }


async def _with_bodies(admin: Admin, topic: str, rows: Sequence[dict[str, Any]], notes: list[str]) -> MessagePage:
    """Add the size and the beginning of each body.

    Without them if the newest body is large.
    """
    for row in rows:
        row |= {"size": None, "preview": None}
    if rows:
        newest = max(rows, key=lambda row: row["store_timestamp"])
        probe = await _bodies(admin, topic, {_queue(topic, newest): (newest["offset"], newest["offset"] + 1)})
        if max((len(body) for body in probe.values()), default=0) > _LARGEST_PREVIEWED:
            notes.append("the bodies are large: open a message to see its body")
        else:
            bodies = await _bodies(admin, topic, _ranges_of(topic, rows))
            for row in rows:
                body = bodies.get((row["broker"], row["queue_id"], row["offset"]))
                if body is not None:
                    row |= {"size": len(body), "preview": preview_body(body)}
    return MessagePage(list(rows), notes)


async def _bodies(admin: Admin, topic: str, ranges: Ranges) -> dict[tuple[str, int, int], bytes]:
    start, stop = _positions(ranges, 0.0, 0.0)
    table = await admin.aread_table(topic, start, stop, columns=("broker", "queue_id", "offset", "body"))
    return {(row["broker"], row["queue_id"], row["offset"]): row["body"] or b"" for row in table.to_pylist()}


def _ranges_of(topic: str, rows: Sequence[Mapping[str, Any]]) -> dict[MessageQueue, tuple[int, int]]:
    """Return the offsets of these rows by queue.

    The rows of a queue lie beside each other.
    """
    ranges: dict[MessageQueue, tuple[int, int]] = {}
    for row in rows:
        queue, offset = _queue(topic, row), row["offset"]
        low, high = ranges.get(queue, (offset, offset + 1))
        ranges[queue] = min(low, offset), max(high, offset + 1)
    return ranges


def _queue(topic: str, row: Mapping[str, Any]) -> MessageQueue:
    return MessageQueue(topic, row["broker"], row["queue_id"])
