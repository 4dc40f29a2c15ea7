"""What a push consumer fetches: one parked request per share of a broker's queues, again and again.

Runs on the connection's event loop. What arrives goes to `Delivery` at once; what cannot be read, or taken, is told to
`unreadable` (`raymq.client.push.examining`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raymq.actors.backoff import Backoff
from raymq.actors.errors import RayMQError
from raymq.actors.filter.wanted import Wanted
from raymq.actors.protocol import MessageQueue
from raymq.actors.supervision import Supervisor
from raymq.actors.wire.commands.fetch import MAX_ANSWER_BYTES, Fetched
from raymq.client.connection import Connection
from raymq.client.health import FailingFetches
from raymq.client.members.subscription import SqlWanted, TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.push.delivery import Delivery
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.queue_backoff import QueueBackoffs
from raymq.client.received import received, received_one
from raymq.client.requests.fetch_shares import FetchShares, Share
from raymq.client.requests.fetching import EarlyAnswers, fetch

_PARK_SECONDS = 15.0
#: The same behind one that failed: only its end, which comes soon then, tells that the broker answers again.
_PROBE_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetcher:
    """As whom a consumer fetches.

    Attributes:
        client_id: the member that fetches.
        session: what the names of its sessions at the brokers begin with.
        group: its group; None: it broadcasts, and no broker keeps its offsets.
    """

    mq: Connection
    client_id: str
    session: str
    group: str | None


class Fetching:
    """The fetches of one consumer.

    Args:
        filters: by topic, what is wanted of it.
        queues: those that are consumed now, in the order of their turns; it belongs to the consumer, and a queue that
            brought something goes to its end here.
        delivery: gets what arrives.
        backoffs: the queues that are left alone for a while.
        supervisor: keeps the fetches going.
        failing: told which fetches fail.
        unreadable: told of a queue that cannot be read from where it should be, or whose messages cannot be taken.
    """

    def __init__(
        self,
        who: Fetcher,
        *,
        filters: Mapping[str, TagFilter | SqlWanted],
        queues: dict[MessageQueue, ProcessQueue],
        delivery: Delivery,
        backoffs: QueueBackoffs,
        supervisor: Supervisor,
        failing: FailingFetches,
        unreadable: Callable[[ProcessQueue, BaseException], None],
    ) -> None:
        self._who = who
        self._filters = filters
        self._queues = queues
        self._delivery = delivery
        self._backoffs = backoffs
        self._supervisor = supervisor
        self._failing = failing
        self._unreadable = unreadable
        #: Set when anything arrives; whoever has looked after that clears it.
        self.arrived = asyncio.Event()
        #: Queues of which no more is fetched until something was found out about them.
        self.held: set[ProcessQueue] = set()
        self._shares = FetchShares()
        self._fetchers: dict[Share, asyncio.Task[None]] = {}
        self._changed: dict[Share, asyncio.Event] = {}
        self._stopping = False

    def follow(self) -> None:
        """The queues are others than before: fetch of those that are consumed now."""
        self._shares.keep_only(self._queues.keys())
        for share in {self._shares.of(queue) for queue in self._queues} | set(self._fetchers):
            if share not in self._fetchers and not self._stopping:
                self._changed[share] = asyncio.Event()
                self._fetchers[share] = self._begin(share)
            self._changed[share].set()

    def anew(self, queue: MessageQueue) -> None:
        """End the fetch that a queue is part of; the next one is made of what is known then."""
        changed = self._changed.get(self._shares.of(queue))
        if changed is not None:
            changed.set()

    def leave_alone(self, queue: MessageQueue, error: Exception) -> float:
        """Do without a queue for a while, longer each time; the others go on. Returns the seconds."""
        seconds = self._backoffs.failed(queue)
        _log.info("%s cannot be read, again in %.1f s: %s", queue, seconds, error)
        asyncio.get_running_loop().call_later(seconds, self.anew, queue)
        return seconds

    def wanted(self, process: ProcessQueue) -> Wanted:
        """What a fetch asks for of a queue."""
        queue = process.queue
        wanted = self._filters[queue.topic]
        place = queue.topic, queue.queue_id, process.next_offset
        return Wanted(*place, wanted.codes, wanted.sql, process.epoch, process.incarnation)

    def deliver(
        self, process: ProcessQueue, messages: list[ReceivedMessage], sizes: list[int], next_offset: int
    ) -> None:
        """Messages of one queue arrived; their sizes in bytes, and where the next fetch of it begins."""
        self.arrived.set()
        self._backoffs.succeeded(process.queue)
        wanted = self._filters[process.queue.topic]
        if wanted.codes is not None:  # the broker compared hashes
            pairs = [pair for pair in zip(messages, sizes, strict=True) if wanted.passes(pair[0].tags)]
            messages, sizes = [message for message, _ in pairs], [size for _, size in pairs]
        if len(messages) == 1:
            self._delivery.add_one(process, messages[0], sizes[0])
        else:
            self._delivery.add(process, messages, sizes)
        process.next_offset = max(process.next_offset, next_offset)
        if messages:  # other queues take their turn first: this one goes behind them
            self._queues[process.queue] = self._queues.pop(process.queue)
        elif not process.room:  # what is filtered out uses up no limit of the fetch, which goes on without it
            self.anew(process.queue)

    def stop(self) -> None:
        """Fetch nothing any more."""
        self._stopping = True
        for task in self._fetchers.values():
            task.cancel()

    def _begin(self, share: Share) -> asyncio.Task[None]:
        return self._supervisor.keep(f"fetches from {share}", lambda: self._keep_fetching(share))

    async def _keep_fetching(self, share: Share) -> None:
        """Fetch a share of a broker's queues again and again; a change of the queues ends the fetch under way."""
        changed = self._changed[share]
        backoff = Backoff(first=0.1, cap=1.0)
        while True:
            processes = self._with_room(share)
            changed.clear()
            if not processes:
                self._failing.over(share)
                await changed.wait()
                continue
            begun_at = time.monotonic()
            call = asyncio.ensure_future(self._fetch(share, processes))
            change = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait((call, change), return_when=asyncio.FIRST_COMPLETED)
                if call.done():
                    call.result()
                    backoff.reset()
                    self._failing.over(share)
                    self._supervisor.succeeded(f"fetches from {share}")
            except RayMQError as error:
                _log.debug("fetch from %s: %s", share, error)
                self._failing.failed(share, share.broker, begun_at, error)
                await asyncio.sleep(backoff.next_delay())
            finally:
                call.cancel()
                change.cancel()

    def _with_room(self, share: Share) -> list[ProcessQueue]:
        """The queues of a share of which more may be fetched; `anew` is called when others have room."""
        processes = [
            process
            for process in self._queues.values()
            if self._shares.of(process.queue) == share
            and self._backoffs.is_due(process.queue)
            and process not in self.held
        ]
        for process in processes:
            process.waits_for_room = not process.has_room
        self._delivery.settle()
        return [process for process in processes if not process.waits_for_room]

    async def _fetch(self, share: Share, processes: list[ProcessQueue]) -> None:
        """One fetch; what it brings goes on its way at once, before anybody is told that it is done."""
        #: Queues of which this fetch may bring more, although they could not take what it brought before that.
        unread: set[ProcessQueue] = set()

        def arrived(parts: list[Fetched]) -> None:
            for part in parts:
                process = processes[part.index]
                if process in unread:
                    continue
                try:
                    self._arrived(process, part)
                except BaseException as error:  # noqa: BLE001 - of this queue; what the others got is theirs
                    unread.add(process)
                    self._unreadable(process, error)

        def one_arrived(index: int, record: memoryview) -> None:
            process = processes[index]
            if process in unread:
                return
            try:
                self._one_arrived(process, record)
            except BaseException as error:  # noqa: BLE001 - as above
                unread.add(process)
                self._unreadable(process, error)

        def learn(epoch: int) -> None:
            for process in processes:
                process.epoch = epoch

        wanted = [self.wanted(process) for process in processes]
        on_early = EarlyAnswers(arrived, one_arrived, len(processes))
        # Together no more than the fullest of them has room for, so that none gets more.
        park_seconds = _PROBE_SECONDS if self._failing.fails(share) else _PARK_SECONDS
        limits = (max(1, min(process.room for process in processes)), MAX_ANSWER_BYTES, park_seconds)
        who = self._who
        session = f"{who.session}:{share}"
        last = fetch(
            *(who.mq, share.broker, session, wanted, *limits, who.group, who.client_id),
            on_early=on_early,
            on_epoch=learn,
        )
        arrived(await last)

    def _arrived(self, process: ProcessQueue, part: Fetched) -> None:
        if process.dropped:
            return
        if part.error is not None:
            raise part.error
        self.deliver(process, received(part, process.queue), part.sizes.tolist(), part.next_offset)

    def _one_arrived(self, process: ProcessQueue, record: memoryview) -> None:
        """Of a queue of which all is wanted."""
        if process.dropped:
            return
        self.arrived.set()
        self._delivery.add_one(process, received_one(record, 0, process.queue), len(record))
        if len(self._queues) > 1:
            self._queues[process.queue] = self._queues.pop(process.queue)
