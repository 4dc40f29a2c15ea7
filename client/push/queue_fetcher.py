"""Fetch messages for a push consumer, with one parked request per batch of queues.

A batch has the queues of one broker. The fetcher runs on the connection's event loop. Fetched messages go to
`ConsumeMessageService` at once. A queue that cannot be read at the next offset is backed off, moved, released, or read
record by record. While a queue is examined, nothing more of it is fetched, and other queues go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from raymq.actors.backoff import Backoff
from raymq.actors.errors import OffsetOutOfRange, OffsetReset, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import MessageQueue
from raymq.actors.request_limits import MAX_FETCHED
from raymq.actors.supervisor import Supervisor
from raymq.actors.wire.commands.fetch_commands import MAX_ANSWER_BYTES, Fetched
from raymq.client.connection import Connection
from raymq.client.consumer_health import FetchFailures
from raymq.client.members.tag_filter import SqlSubscription, TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.message_decoder import decode_each, decode_message, decode_messages
from raymq.client.push.consume_message_service import ConsumeMessageService
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.rebalance import QueueBackoffs
from raymq.client.requests.fetch_request import StreamedAnswers, fetch
from raymq.client.requests.offset_requests import OffsetRequests
from raymq.storage.errors import StoreCorrupt

_PARK_SECONDS = 15.0
#: The same after a failed request. Only the end of a request shows that the broker responds again, so it must come
#: soon.
_PROBE_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchIdentity:
    """The identity with which a consumer fetches.

    Attributes:
        client_id: the member that fetches.
        session: the prefix of its session names at the brokers.
        group: its group; None: it broadcasts, and no broker keeps its offsets.
    """

    mq: Connection
    client_id: str
    session: str
    group: str | None


class QueueBatch(NamedTuple):
    """A batch of queues of one broker, at most `MAX_FETCHED`.

    Nearly all consumers have one batch per broker.
    """

    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.broker}, part {self.number + 1}" if self.number else self.broker


class QueueBatches:
    """The batches of one consumer's queues.

    A queue stays in its batch as long as it is assigned to the consumer.
    """

    def __init__(self, most: int = MAX_FETCHED) -> None:
        self._most = most
        self._batches: dict[MessageQueue, QueueBatch] = {}
        self._counts: Counter[QueueBatch] = Counter()

    def of(self, queue: MessageQueue) -> QueueBatch:
        """Return a queue's batch; add a new queue to its broker's first batch with room."""
        batch = self._batches.get(queue)
        if batch is None:
            batch = QueueBatch(queue.broker, 0)
            while self._counts[batch] >= self._most:
                batch = QueueBatch(batch.broker, batch.number + 1)
            self._batches[queue] = batch
            self._counts[batch] += 1
        return batch

    def keep_only(self, queues: Collection[MessageQueue]) -> None:
        """Remove all queues but these, which makes room in their batches."""
        for queue in self._batches.keys() - queues:
            self._counts[self._batches.pop(queue)] -= 1


class QueueOwner(Protocol):
    """The consumer that owns the queues."""

    def move(self, process: ProcessQueue, offset: int, incarnation: int | None) -> None:
        """Continue at `offset`, in that incarnation of the topic (None: the same)."""

    def gone(self, process: ProcessQueue, error: Exception) -> None:
        """Release a queue that its broker does not have, or no longer has."""

    def pass_over(self, queue: MessageQueue, offset: int, error: BaseException) -> None:
        """Skip a message that cannot be read."""


class QueueFetcher:
    """The fetches of one consumer.

    Args:
        filters: the filters by topic.
        queues: the queues that are consumed now, in the order of their turns. The dict belongs to the consumer. A queue
            whose messages arrived is moved to its end here.
        delivery: receives the messages.
        backoffs: the queues that are skipped for a while after errors.
        supervisor: restarts the fetch tasks.
        failing: records which fetches fail.
        offsets: the offsets of the consumer's group.
        owner: moves and releases queues that cannot be read at the next offset.
    """

    def __init__(
        self,
        identity: FetchIdentity,
        *,
        filters: Mapping[str, TagFilter | SqlSubscription],
        queues: dict[MessageQueue, ProcessQueue],
        delivery: ConsumeMessageService,
        backoffs: QueueBackoffs,
        supervisor: Supervisor,
        failing: FetchFailures,
        offsets: OffsetRequests,
        owner: QueueOwner,
    ) -> None:
        self._who = identity
        self._filters = filters
        self._queues = queues
        self._delivery = delivery
        self._backoffs = backoffs
        self._supervisor = supervisor
        self._failing = failing
        self._recovery = OffsetRecovery(identity, self, offsets, owner, supervisor)
        #: Set when messages arrive. The code that waits for it clears it.
        self.arrived = asyncio.Event()
        #: Queues that are not fetched while they are examined.
        self.suspended: set[ProcessQueue] = set()
        self._batches = QueueBatches()
        self._fetchers: dict[QueueBatch, asyncio.Task[None]] = {}
        self._changed: dict[QueueBatch, asyncio.Event] = {}
        self._stopping = False

    def update_queues(self) -> None:
        """Fetch the queues that are consumed now, after they have changed."""
        self._batches.keep_only(self._queues.keys())
        for batch in {self._batches.of(queue) for queue in self._queues} | set(self._fetchers):
            if batch not in self._fetchers and not self._stopping:
                self._changed[batch] = asyncio.Event()
                self._fetchers[batch] = self._begin(batch)
            self._changed[batch].set()

    def restart_fetch(self, queue: MessageQueue) -> None:
        """End the fetch that includes a queue. The next one uses the present state."""
        changed = self._changed.get(self._batches.of(queue))
        if changed is not None:
            changed.set()

    def back_off(self, queue: MessageQueue, error: Exception) -> float:
        """Skip a queue for a while, longer each time, and return the seconds.

        Other queues go on.
        """
        seconds = self._backoffs.failed(queue)
        _log.info("%s cannot be read, again in %.1f s: %s", queue, seconds, error)
        asyncio.get_running_loop().call_later(seconds, self.restart_fetch, queue)
        return seconds

    def wanted(self, process: ProcessQueue) -> FetchSpec:
        """Return the specification of a queue's next fetch."""
        queue = process.queue
        tag_filter = self._filters[queue.topic]
        place = queue.topic, queue.queue_id, process.next_offset
        return FetchSpec(*place, tag_filter.codes, tag_filter.sql, process.epoch, process.incarnation)

    def deliver(
        self, process: ProcessQueue, messages: list[ReceivedMessage], sizes: list[int], next_offset: int
    ) -> None:
        """Deliver fetched messages of one queue.

        Args:
            sizes: the sizes of the messages in bytes.
            next_offset: where the next fetch of the queue begins.
        """
        self.arrived.set()
        self._backoffs.succeeded(process.queue)
        tag_filter = self._filters[process.queue.topic]
        if tag_filter.codes is not None:  # the broker compared hashes
            pairs = [pair for pair in zip(messages, sizes, strict=True) if tag_filter.passes(pair[0].tags)]
            messages, sizes = [message for message, _ in pairs], [size for _, size in pairs]
        self._delivery.add(process, messages, sizes)
        process.next_offset = max(process.next_offset, next_offset)
        if messages:  # move to the end: other queues take their turn first
            self._queues[process.queue] = self._queues.pop(process.queue)
        elif not process.room:  # filtered messages do not count for the fetch's limit, so end it
            self.restart_fetch(process.queue)

    def stop(self) -> None:
        """Stop all fetches."""
        self._stopping = True
        self._recovery.stop()
        for task in self._fetchers.values():
            task.cancel()

    def _begin(self, batch: QueueBatch) -> asyncio.Task[None]:
        return self._supervisor.keep(f"fetches from {batch}", lambda: self._keep_fetching(batch))

    async def _keep_fetching(self, batch: QueueBatch) -> None:
        """Fetch the queues of a batch repeatedly.

        A change of the queues ends the fetch in flight.
        """
        changed = self._changed[batch]
        backoff = Backoff(first=0.1, cap=1.0)
        while True:
            processes = self._with_room(batch)
            changed.clear()
            if not processes:
                self._failing.over(batch)
                await changed.wait()
                continue
            begun_at = time.monotonic()
            call = asyncio.ensure_future(self._fetch(batch, processes))
            change = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait((call, change), return_when=asyncio.FIRST_COMPLETED)
                if call.done():
                    call.result()
                    backoff.reset()
                    self._failing.over(batch)
                    self._supervisor.succeeded(f"fetches from {batch}")
            except RayMQError as error:
                _log.debug("fetch from %s: %s", batch, error)
                self._failing.failed(batch, batch.broker, begun_at, error)
                await asyncio.sleep(backoff.next_delay())
            finally:
                call.cancel()
                change.cancel()

    def _with_room(self, batch: QueueBatch) -> list[ProcessQueue]:
        """Return the queues of a batch that have room for more messages.

        For the others, `restart_fetch` is called when they have room.
        """
        processes = [
            process
            for process in self._queues.values()
            if self._batches.of(process.queue) == batch
            and self._backoffs.is_due(process.queue)
            and process not in self.suspended
        ]
        for process in processes:
            process.waits_for_room = not process.has_room
        self._delivery.settle()
        return [process for process in processes if not process.waits_for_room]

    async def _fetch(self, batch: QueueBatch, processes: list[ProcessQueue]) -> None:
        """Make one fetch, and deliver its messages as soon as they arrive."""
        #: Queues of which this fetch may return more messages, although earlier ones could not be processed.
        unread: set[ProcessQueue] = set()

        def handle(process: ProcessQueue, answer: Fetched | memoryview) -> None:
            if process in unread or process.dropped:
                return
            try:
                self.deliver(process, *_decoded(answer, process.queue))
            except BaseException as error:  # noqa: BLE001 - an error of this queue must not affect the others
                unread.add(process)
                self._recovery.begin(process, error)

        def arrived(parts: list[Fetched]) -> None:
            for part in parts:
                handle(processes[part.index], part)

        def one_arrived(index: int, record: memoryview) -> None:
            handle(processes[index], record)

        def learn(epoch: int) -> None:
            for process in processes:
                process.epoch = epoch

        specs = [self.wanted(process) for process in processes]
        on_early_answer = StreamedAnswers(arrived, one_arrived, len(processes))
        # The limit is the room of the fullest queue, so that no queue gets more than it has room for.
        park_seconds = _PROBE_SECONDS if self._failing.fails(batch) else _PARK_SECONDS
        limits = (max(1, min(process.room for process in processes)), MAX_ANSWER_BYTES, park_seconds)
        identity = self._who
        session = f"{identity.session}:{batch}"
        last = fetch(
            *(identity.mq, batch.broker, session, specs, *limits, identity.group, identity.client_id),
            on_early_answer=on_early_answer,
            on_epoch=learn,
        )
        arrived(await last)


def _decoded(answer: Fetched | memoryview, queue: MessageQueue) -> tuple[list[ReceivedMessage], list[int], int]:
    """Return the messages of a part or record, sizes, and the next offset."""
    if isinstance(answer, memoryview):
        message = decode_message(answer, 0, queue)
        return [message], [len(answer)], message.queue_offset + 1
    if answer.error is not None:
        raise answer.error
    return decode_messages(answer, queue), answer.sizes.tolist(), answer.next_offset


@dataclass(eq=False)
class OffsetRecovery:
    """The recovery of one consumer's queues that cannot be read."""

    _who: FetchIdentity
    _fetcher: QueueFetcher
    _offsets: OffsetRequests
    _owner: QueueOwner
    _supervisor: Supervisor
    _under_way: dict[ProcessQueue, asyncio.Task[None]] = field(default_factory=dict)

    def begin(self, process: ProcessQueue, error: BaseException) -> None:
        """Start the recovery of a queue whose fetch or messages had an error."""
        queue = process.queue
        if process.dropped:
            return
        if isinstance(error, OffsetReset):
            self._apply_reset(process, error)
        elif isinstance(error, OffsetOutOfRange):
            self._examine(process, lambda: self._find_place(process, error))
        elif isinstance(error, TopicNotFound | QueueNotFound):
            self._owner.gone(process, error)
        elif isinstance(error, RayMQError) and not isinstance(error, StoreCorrupt):
            self._fetcher.back_off(queue, error)
        else:
            if not isinstance(error, StoreCorrupt):
                self._supervisor.report("fetch of a queue", error)
            self._examine(process, lambda: self._read_singly(process))
        self._fetcher.restart_fetch(queue)  # the rest of this fetch would not continue at the right offset

    def stop(self) -> None:
        """Cancel all examinations."""
        for task in self._under_way.values():
            task.cancel()

    def _examine(self, process: ProcessQueue, find_out: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Suspend the fetches of a queue until `find_out` has succeeded. Other queues go on."""
        if process in self._under_way:
            return

        async def until_known() -> None:
            while not process.dropped:
                try:
                    await find_out()
                except (TopicNotFound, QueueNotFound) as error:
                    self._owner.gone(process, error)
                except OffsetReset as reset:
                    self._apply_reset(process, reset)
                except RayMQError as error:
                    await asyncio.sleep(self._fetcher.back_off(process.queue, error))
                else:
                    return

        def known(_: asyncio.Task[None]) -> None:
            self._under_way.pop(process, None)
            self._fetcher.suspended.discard(process)
            self._fetcher.restart_fetch(process.queue)

        self._fetcher.suspended.add(process)
        self._under_way[process] = task = self._supervisor.keep("examination of a queue", until_known)
        task.add_done_callback(known)

    async def _find_place(self, process: ProcessQueue, error: OffsetOutOfRange) -> None:
        """Move a queue whose offsets do not include the next offset to fetch.

        If the next offset is below the queue's minimum, continue at the minimum. If it is above the maximum, the queue
        is not the one that was read: its topic was deleted and recreated, or its broker lost the newest messages. Then
        continue at the group's committed offset if it is within the queue, else at the minimum. Never continue at the
        maximum, since the messages that were stored meanwhile may be new.
        """
        low, high = error.min_offset, error.max_offset
        _log.warning("%s: offset %d is outside %d..%d", process.queue, process.next_offset, low, high)
        if process.next_offset < low:
            process.next_offset = low
            return
        place = await self._offsets.committed(process.queue) if self._who.group is not None else None
        committed, incarnation = (low, process.incarnation) if place is None else place
        if not process.dropped:
            self._owner.move(process, committed if low <= committed <= high else low, incarnation)

    async def _read_singly(self, process: ProcessQueue) -> None:
        """Read on record by record, and skip exactly the damaged records."""
        queue = process.queue
        limits = (max(1, process.room), MAX_ANSWER_BYTES, 0.0)
        identity = self._who
        specs = [self._fetcher.wanted(process)]
        session = f"{identity.session}:{queue}"
        parts = await fetch(
            *(identity.mq, queue.broker, session, specs, *limits, identity.group, identity.client_id), check_crc=True
        )
        if process.dropped or not parts:
            return
        part = parts[0]
        if isinstance(part.error, StoreCorrupt):
            offset = process.next_offset if part.error.queue_offset is None else part.error.queue_offset
            self._owner.pass_over(queue, offset, part.error)
            process.next_offset = max(process.next_offset, offset + 1)
            return
        if part.error is not None:
            raise part.error
        messages, sizes, bad = decode_each(part, queue)
        for offset, error in bad:
            self._owner.pass_over(queue, offset, error)
        self._fetcher.deliver(process, messages, sizes, part.next_offset)

    def _apply_reset(self, process: ProcessQueue, reset: OffsetReset) -> None:
        """Move a queue as a reset of the broker requires.

        If there is no group, the reason is that the topic was recreated, or that the broker's log lost messages. In the
        second case, unfinished messages before the offset are fetched again, too.
        """
        lost = self._who.group is None and reset.incarnation is None
        offset = min(reset.offset, process.commit_offset) if lost else reset.offset
        self._owner.move(process, offset, reset.incarnation)
