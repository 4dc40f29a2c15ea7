"""Read, redrive and delete the dead letters of a consumer group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple, Self
from uuid import uuid4

from raymq.actors.errors import OffsetOutOfRange, RayMQError, TopicNotFound
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.naming import DLQ_PREFIX, dlq_topic
from raymq.actors.protocol import MessageQueue, RedriveStatus
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.commands.dead_letter_commands import (
    delete_command,
    deleted_command,
    read_count,
    read_deleted,
    read_redriven,
    redrive_command,
)
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.client import arguments
from raymq.client.admin import topic_requests
from raymq.client.admin.group_requests import check_exists
from raymq.client.connection import Connection
from raymq.client.consumer_health import SetAside
from raymq.client.message import ReceivedMessage
from raymq.client.receipt import Receipt
from raymq.client.requests.broker_requests import ask, retry_while_unavailable
from raymq.client.requests.fan_out import report_skipped_brokers
from raymq.client.requests.fetch_request import CHUNK_BYTES, fetch
from raymq.client.results import FoundMessages, QueueStats
from raymq.storage.errors import StoreCorrupt, WrongType
from raymq.storage.records import property_names as properties
from raymq.storage.records.record import Record, decode

if TYPE_CHECKING:
    from raymq.client.tracing.trace_properties import TracedEntry

_PAGE_MESSAGES = 1_000
#: Entries per request to redrive or to delete.
_REDRIVE_AT_ONCE = 500
_REQUEST_SECONDS = 10.0
_BEHIND_ALL = 1 << 63

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class DeadMessage(ReceivedMessage):
    """A message in a dead-letter queue.

    `topic`, `message_id`, `born_timestamp`, `keys`, `tags` and `properties` are those of the original message.
    `dead_at` is the time at which it was put there, in seconds since 1970; `reason` is why, "" where a foreign broker
    put it there. `redriven` says whether it was sent to its group again; None where that was not asked.
    """

    dead_at: float = 0.0
    reason: str = ""
    redriven: bool | None = None

    @classmethod
    def from_record(cls, record: Record, broker: str, receipt: Receipt | None = None) -> Self:
        """Return the message in a record of a dead-letter queue that `broker` served."""
        message = ReceivedMessage.from_record(record, broker, receipt)
        known = {field.name: getattr(message, field.name) for field in fields(ReceivedMessage)}
        reason = message.system_properties.get(properties.DLQ_REASON, "")
        return cls(**known, dead_at=message.store_timestamp, reason=reason)


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """The message ids of a redrive, by outcome.

    Attributes:
        redriven: sent to the group again.
        already: not sent, because they were redriven before.
        unknown: not found among the dead letters.
        not_asked: the names of brokers that are away.
        unreadable: dead letters that are damaged in their broker's files. `unknown` messages may be among these, or on
            the brokers of `not_asked`.
    """

    redriven: list[str]
    already: list[str]
    unknown: list[str]
    not_asked: list[str] = field(default_factory=list)
    unreadable: list[SetAside] = field(default_factory=list)


class _Entry(NamedTuple):
    """A dead letter's queue, offset and time, and its trace context if that is needed.

    Only this is kept in memory, since dead letters may be many and large.
    """

    message_id: str
    queue: MessageQueue
    offset: int
    dead_at: float
    traced: TracedEntry | None = None


@dataclass(slots=True)
class _SkippedEntries:
    """The unavailable brokers and the damaged entries that a read of dead letters skipped."""

    brokers: list[str] = field(default_factory=list)
    entries: list[SetAside] = field(default_factory=list)


async def read(
    mq: Connection, group: str, limit: int | None = None, missed: _SkippedEntries | None = None
) -> AsyncGenerator[DeadMessage]:
    """Iterate over the dead letters of a group, broker by broker, the oldest first.

    `limit` bounds the number for each queue. Damaged entries are skipped and logged.

    Args:
        missed: collects the brokers and entries that were skipped; None: brokers that are away are logged, too, and if
            no dead letter was found, BrokerUnavailable is raised for them.
    """
    topic = dlq_topic(group)
    try:
        route = await mq.routes.readable(topic, fresh=True)
    except TopicNotFound:  # the group has no dead letters yet
        return
    away, found = mq.routes.away(route), False
    skipped = _SkippedEntries() if missed is None else missed
    skipped.brokers += away
    for queue in route.readable():
        remaining, offset = limit, 0
        deleted_ranges = await deleted(mq, queue)
        while remaining is None or remaining > 0:
            most = _PAGE_MESSAGES if remaining is None else remaining
            page, offset = await _page(mq, queue, offset, most, skipped.entries)
            if not page:
                break
            messages = [message for message in page if not lies_in(deleted_ranges, message.queue_offset)]
            for message in messages:
                found = True
                yield message
            remaining = None if remaining is None else remaining - len(messages)
    if missed is None:
        report_skipped_brokers(f"a dead letter of {group}", away, found=found)


async def first(mq: Connection, group: str, limit: int, *, newest_first: bool = False) -> FoundMessages[DeadMessage]:
    """See `Admin.dlq_list`."""
    arguments.whole("limit", limit, 1)
    arguments.flag("newest_first", newest_first)
    await check_exists(mq, group, dead_letters=True)
    missed = _SkippedEntries()
    if newest_first:
        found = await _newest(mq, group, limit + 1, missed)
    else:
        found = [message async for message in read(mq, group, limit + 1, missed)]
    report_skipped_brokers(f"a dead letter of {group}", missed.brokers, found=bool(found))
    found.sort(key=lambda message: (message.dead_at, message.queue, message.queue_offset), reverse=newest_first)
    listed = await _with_redrives(mq, group, found[:limit])
    return FoundMessages(listed, missed.brokers, missed.entries, truncated=len(found) > limit)


async def _newest(mq: Connection, group: str, limit: int, missed: _SkippedEntries) -> list[DeadMessage]:
    """Return the newest dead letters, at most `limit` of each queue, in no particular order."""
    topic = dlq_topic(group)
    try:
        route = await mq.routes.readable(topic, fresh=True)
    except TopicNotFound:  # the group has no dead letters yet
        return []
    stats = await topic_requests.stats(mq, topic, skip_silent=True)
    silent = route.addresses.keys() - {queue.broker for queue in stats}
    missed.brokers += sorted({*mq.routes.away(route), *silent})
    found: list[DeadMessage] = []
    for queue in sorted(set(route.readable()) & stats.keys()):
        found += await _last(mq, queue, stats[queue], limit, missed.entries)
    return found


async def _last(
    mq: Connection, queue: MessageQueue, stats: QueueStats, limit: int, unreadable: list[SetAside]
) -> list[DeadMessage]:
    """Return at most the last `limit` entries of a queue, which is read backwards."""
    deleted_ranges = await deleted(mq, queue)
    found: list[DeadMessage] = []
    damaged: dict[int, SetAside] = {}
    behind = stats.max_offset
    while behind > stats.min_offset and len(found) < limit:
        begin = offset = max(stats.min_offset, behind - min(limit, _PAGE_MESSAGES))
        part: list[DeadMessage] = []
        while offset < behind:
            passed_over: list[SetAside] = []
            page, offset = await _page(mq, queue, offset, behind - offset, passed_over)
            damaged |= {each.offset: each for each in passed_over}
            if not page:
                break
            part += [each for each in page if each.queue_offset < behind]
        found = [each for each in part if not lies_in(deleted_ranges, each.queue_offset)] + found
        behind = begin
    unreadable += damaged.values()
    return found[-limit:]


async def _with_redrives(mq: Connection, group: str, letters: list[DeadMessage]) -> list[DeadMessage]:
    """Return dead letters with what their brokers know about earlier redrives.

    Unknown where one does not answer.
    """
    by_queue: dict[MessageQueue, list[int]] = {}
    for letter in letters:
        by_queue.setdefault(letter.queue, []).append(letter.queue_offset)
    known: dict[tuple[MessageQueue, int], bool] = {}
    for queue, offsets in by_queue.items():
        for first in range(0, len(offsets), _REDRIVE_AT_ONCE):
            part = offsets[first : first + _REDRIVE_AT_ONCE]
            command = redrive_command(group, part, force=False, dry_run=True)
            with contextlib.suppress(RayMQError):
                statuses = read_redriven(await ask(mq, queue.topic, queue.broker, command, _REQUEST_SECONDS))
                known |= {
                    (queue, offset): status is RedriveStatus.ALREADY
                    for offset, status in zip(part, statuses, strict=True)
                }
    return [replace(letter, redriven=known.get((letter.queue, letter.queue_offset))) for letter in letters]


async def deleted(mq: Connection, queue: MessageQueue) -> list[tuple[int, int]]:
    """Return the ranges of offsets of a dead-letter queue that were deleted.

    The list is empty for an older broker, which does not support the request.
    """
    group = queue.topic.removeprefix(DLQ_PREFIX)
    try:
        answer = await retry_while_unavailable(
            lambda: ask(mq, queue.topic, queue.broker, deleted_command(group), _REQUEST_SECONDS), _REQUEST_SECONDS
        )
    except RayMQError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED.name:
            return []
        raise
    return read_deleted(answer) if queue.queue_id == 0 else []


def lies_in(ranges: Sequence[tuple[int, int]], offset: int) -> bool:
    """Return True if an offset lies in one of these sorted ranges."""
    at = bisect_right(ranges, (offset, _BEHIND_ALL)) - 1
    return at >= 0 and offset < ranges[at][1]


async def delete(mq: Connection, group: str, ids: Iterable[str] | None, *, dry_run: bool) -> int:
    """See `Admin.dlq_delete`."""
    arguments.flag("dry_run", dry_run)
    selected = None if ids is None else set(_checked(ids))
    await check_exists(mq, group, dead_letters=True)
    by_queue: dict[MessageQueue, list[int]] = {}
    missed = _SkippedEntries()
    async for message in read(mq, group, None, missed):
        if selected is None or message.message_id in selected:
            by_queue.setdefault(message.queue, []).append(message.queue_offset)
    report_skipped_brokers(f"a selected dead letter of {group}", missed.brokers, found=bool(by_queue))
    if dry_run:
        return sum(map(len, by_queue.values()))
    count = 0
    for queue, offsets in by_queue.items():
        for first in range(0, len(offsets), _REDRIVE_AT_ONCE):
            command = delete_command(group, offsets[first : first + _REDRIVE_AT_ONCE])
            count += read_count(await ask(mq, queue.topic, queue.broker, command, _REQUEST_SECONDS))
    return count


async def following(found: AsyncIterator[DeadMessage]) -> DeadMessage | None:
    """Return the next message; None after the last one."""
    return await anext(found, None)


async def _page(
    mq: Connection, queue: MessageQueue, offset: int, most: int, unreadable: list[SetAside]
) -> tuple[list[DeadMessage], int]:
    """Return the next messages from `offset` on and the offset to continue at.

    The list is empty at the queue's end. Entries that expired meanwhile and damaged entries are left out; the damaged
    ones are appended to `unreadable`.
    """

    def pass_over(at: int, error: Exception) -> None:
        _log.error("%s: the dead letter at offset %d cannot be read and is passed over: %s", queue, at, error)
        unreadable.append(SetAside(queue, at, str(error) or repr(error)))

    messages: list[DeadMessage] = []
    while not messages:
        part = await _part(mq, queue, offset, min(most, _PAGE_MESSAGES))
        if part is None or (part.error is None and part.next_offset <= offset):
            break
        if isinstance(part.error, OffsetOutOfRange) and part.error.min_offset > offset:
            offset = part.error.min_offset
        elif isinstance(part.error, StoreCorrupt):
            damaged = offset if part.error.queue_offset is None else part.error.queue_offset
            pass_over(damaged, part.error)
            offset = max(offset, damaged) + 1
        elif part.error is not None:
            raise part.error
        else:
            position = 0
            for at, size in zip(part.offsets.tolist(), part.sizes.tolist(), strict=True):
                try:
                    messages.append(DeadMessage.from_record(decode(part.records, position), queue.broker))
                except Exception as error:  # noqa: BLE001 - any error means that this message cannot be read
                    pass_over(at, error)
                position += size
            offset = part.next_offset
    return messages, offset


async def _part(mq: Connection, queue: MessageQueue, offset: int, most: int) -> Fetched | None:
    session = f"dead-letters-{uuid4().hex}"
    specs = [FetchSpec(queue.topic, queue.queue_id, offset)]
    limits = (most, CHUNK_BYTES)
    parts = await retry_while_unavailable(
        lambda: fetch(mq, queue.broker, session, specs, *limits, 0.0, check_crc=True), _REQUEST_SECONDS
    )
    return parts[0] if parts else None


async def redrive(
    mq: Connection,
    group: str,
    ids: Iterable[str] | None,
    rate: float | None,
    *,
    dry_run: bool,
    force: bool,
    progress: Callable[[int, int], None] | None = None,
) -> RedriveResult:
    """Redrive dead letters; see `Admin.dlq_redrive`.

    If a message has several entries, only its newest entry is redriven.
    """
    outcome: dict[str, RedriveStatus] = {} if ids is None else dict.fromkeys(_checked(ids), RedriveStatus.UNKNOWN)
    if rate is not None:
        arguments.per_second("rate", rate)
    arguments.flag("dry_run", dry_run)
    arguments.flag("force", force)
    await check_exists(mq, group)
    entries: dict[str, _Entry] = {}
    missed = _SkippedEntries()
    async for message in read(mq, group, None, missed):
        known = entries.get(message.message_id)
        if (ids is None or message.message_id in outcome) and (known is None or known.dead_at <= message.dead_at):
            traced = None if mq.tracer is None else mq.tracer.redrivable(message)
            entry = _Entry(message.message_id, message.queue, message.queue_offset, message.dead_at, traced)
            entries[message.message_id] = entry
    report_skipped_brokers(f"a selected dead letter of {group}", missed.brokers, found=bool(entries))
    handled = 0
    at_once = _REDRIVE_AT_ONCE if rate is None else max(1, min(_REDRIVE_AT_ONCE, int(rate / 10)))
    for broker in sorted({entry.queue.broker for entry in entries.values()}):
        of_broker = [entry for entry in entries.values() if entry.queue.broker == broker]
        for first in range(0, len(of_broker), at_once):
            part = of_broker[first : first + at_once]
            began_ns = time.time_ns()
            statuses = await _redrive_part(mq, group, part, force=force, dry_run=dry_run)
            outcome |= {entry.message_id: word for entry, word in zip(part, statuses, strict=True)}
            handled += len(part)
            if progress is not None:
                progress(handled, len(entries))
            if mq.tracer is not None and not dry_run:
                for entry, status in zip(part, statuses, strict=True):
                    if entry.traced is not None and status is RedriveStatus.REDRIVEN:
                        mq.tracer.redriven(entry.traced, group, began_ns)
            if rate is not None and not dry_run:
                await asyncio.sleep(statuses.count(RedriveStatus.REDRIVEN) / rate)
    redriven, already, unknown = ([i for i, word in outcome.items() if word is which] for which in RedriveStatus)
    return RedriveResult(redriven, already, unknown, missed.brokers, missed.entries)


async def _redrive_part(
    mq: Connection, group: str, part: Sequence[_Entry], *, force: bool, dry_run: bool
) -> list[RedriveStatus]:
    queue = part[0].queue
    command = redrive_command(group, [entry.offset for entry in part], force=force, dry_run=dry_run)
    return read_redriven(await ask(mq, queue.topic, queue.broker, command, _REQUEST_SECONDS))


def _checked(ids: Iterable[str]) -> list[str]:
    if isinstance(ids, str):
        raise TypeError("ids must be a list of message ids, not one str")
    if not isinstance(ids, Iterable):
        raise WrongType("ids", "None, or a list of message ids", ids)
    return list(dict.fromkeys(arguments.text("ids", each).upper() for each in ids))
