"""Keep messages that no broker accepted in a file and send them later, in order."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    BrokerUnavailable,
    ClientClosed,
    InvalidInput,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    QueueNotFound,
    RayMQError,
    SendError,
    ServerBusy,
)
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import RecordSender, SendOutcome, Sizes
from raymq.actors.supervisor import Supervisor
from raymq.client.produce.outbox_file import OutboxBatch, OutboxEntry, OutboxFile, UnsentBatches
from raymq.storage.clock import boottime
from raymq.storage.records.record import split

#: How often the file is checked while it is empty or another process sends from it.
_LOOK_SECONDS: Final = 1.0
#: After a crash of the sending process, another process takes over this long after the longest possible end of its last
#: send.
_CLAIM_MARGIN_SECONDS: Final = 5.0
#: The longest pause between two attempts for a topic whose batches no broker accepts.
_REST_SECONDS: Final = 15.0
#: How long `close` waits for the response to a batch from the file that is in flight. Without the response the batch
#: would be sent again.
_LAST_SECONDS: Final = 3.0
#: The errors which show that a route is stale: it has fewer queues now, or a broker is drained.
QUEUE_ERRORS: Final = (QueueNotFound, PermissionDenied)
#: How many waiting failed sends are written into the file together.
_KEPT_TOGETHER: Final = 100
#: How long a failed send tries to write its messages into a file that is locked or full.
_KEEP_SECONDS: Final = 30.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class OutboxSender:
    """A wrapper around a `RecordSender` that keeps unsent batches in a file.

    It runs on the wrapped sender's event loop. Until `close` it also sends the batches of the file.

    A failed send raises the same error as without an outbox, with `.kept` set: the messages are sent later, and sending
    them again would store them twice. If the outcome is unknown, they may be stored already. `close` ends the sends in
    flight in the same way. Only the response of a broker itself refuses messages permanently: a topic or queue may be
    missing in the routes only because its brokers are down.

    Only a separate thread accesses the file, since other processes may lock it for long.
    """

    def __init__(self, sends: RecordSender, file: OutboxFile, terms: SendParameters, owner: object = None) -> None:
        """Initialize the sender.

        Args:
            terms: the terms on which batches of the file are sent.
            owner: an object that is kept alive while this sender runs.
        """
        self._sends = sends
        self._file = file
        self._terms = terms
        self._owner = owner
        self._thread = ThreadPoolExecutor(1, "raymq-outbox")
        self._kept = asyncio.Event()
        #: The sends whose batches are to be written into the file, in order.
        self._to_keep: dict[object, UnsentBatches] = {}
        #: Whether a batch of the file is in flight, or its outcome is not written yet.
        self._emptying = False
        #: `_closing_down`: nothing is sent any more, and further batches are kept. `_closed`: the file is closed, too.
        self._closing_down = self._closed = False
        #: The sends in flight. A send counts as busy until it has an outcome, which is written into the file if
        #: necessary.
        self._sending: set[asyncio.Future[SendOutcome]] = set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = Supervisor("outbox").keep("sending of kept batches", self._empty)
        self._closing: asyncio.Task[None] | None = None
        self._topic_backoffs = _TopicBackoffs(boottime)

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        """Send records, as `Sender.send`. The error shows whether the batch is kept.

        Raise ClientClosed after `close`.
        """
        if self._closed:
            raise ClientClosed("the outbox is closed")
        self._busy += 1
        self._idle.clear()
        try:
            if self._closing_down:
                raise NotStored("closed before the send began")
            return await self._send(topic, records, sizes, terms)
        except RayMQError as error:
            if not terms.by_key and belongs_in_outbox(error, terms):
                await self.keep(topic, [(records, terms)], error)
            raise
        except asyncio.CancelledError:
            if _is_given_up():
                raise
            ended = OutcomeUnknown("closed before an answer came")
            if not terms.by_key:
                await self.keep(topic, [(records, terms)], ended)
            raise ended from None
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def _send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        sending = asyncio.ensure_future(self._sends.send(topic, records, sizes, terms))
        self._sending.add(sending)
        try:
            return await sending
        finally:
            self._sending.discard(sending)

    async def keep(self, topic: str, parts: Sequence[tuple[bytearray, SendParameters]], error: RayMQError) -> None:
        """Write unsent batches into the file, all or none.

        Each batch is written with its terms. The error of the send is marked as kept.
        """
        batches = [
            # An idempotent sender may have added its number to the records, so compute their sizes again.
            OutboxEntry(records, split(memoryview(records)), terms.queue, terms.sharding_key, terms.delayed)
            for records, terms in parts
        ]
        mine = object()
        self._to_keep[mine] = UnsentBatches(topic, batches, _first_line(error))
        try:
            await self._patiently(partial(self._keep_with_others, mine), _KEEP_SECONDS)
        except sqlite3.Error as failure:
            error.remedy = f"send it again: the outbox could not be written ({failure})"
            raise error from failure
        finally:
            self._to_keep.pop(mine, None)
        self._kept.set()
        error.kept = True
        error.remedy = "the outbox has it and will send it"

    def _keep_with_others(self, mine: object) -> None:
        """Write a send's batches together with those of other waiting sends.

        Runs on the file's thread. It does nothing if another call has written them. If brokers go down, many sends fail
        at the same time, and each write waits for the disk.
        """
        waiting = list(self._to_keep.items())
        last = next((place for place, (sender, _) in enumerate(waiting) if sender is mine), None)
        if last is not None:
            together = waiting[: last + _KEPT_TOGETHER]
            self._file.keep(*(send for _, send in together))
            for sender, _ in together:
                self._to_keep.pop(sender, None)

    async def close(self, gathered: Callable[[], Awaitable[None]] | None = None) -> None:
        """End the sends in flight, whose messages are kept, and stop sending from the file.

        The batches stay in the file. A batch of the file that is in flight gets a few seconds for its response. If
        another caller has begun to close, wait for that.

        Args:
            gathered: ends the batches that wait to be sent by this sender, which keeps them.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(gathered))
        await asyncio.shield(self._closing)

    async def close_if_idle(self) -> None:
        """Do `close`, unless sends are in flight, which get their time for a response."""
        if not self._busy:
            await self.close()

    async def _close(self, gathered: Callable[[], Awaitable[None]] | None) -> None:
        self._closing_down = True
        for sending in self._sending:
            sending.cancel()
        if gathered is not None:
            await gathered()
        if self._emptying:
            await asyncio.wait((self._task,), timeout=_LAST_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        while self._busy:
            await self._idle.wait()
        self._closed = True
        await self._aside(self._file.close)
        self._thread.shutdown(wait=False)

    async def _empty(self) -> None:
        """Send the oldest batch of each topic until it is stored or refused.

        Then send the next one, until the sender is closed.
        """
        trouble = Backoff()
        while not self._closing_down:
            self._kept.clear()
            try:
                batch = await self._aside(self._next, self._topic_backoffs.topics())
            except sqlite3.Error as error:
                _log.warning("the outbox cannot be read: %s", error)
                await asyncio.sleep(trouble.next_delay())
                continue
            trouble.reset()
            if batch is None:
                await self._look_again()
            elif not self._closing_down:
                self._emptying = True
                try:
                    await self._send_kept(batch)
                finally:
                    self._emptying = False

    async def _send_kept(self, batch: OutboxBatch) -> None:
        """Try to send one batch of the file, and write its outcome into the file."""
        # A topic whose brokers are down must not delay the others: it pauses and is retried.
        terms = SendParameters(
            self._terms.timeout,
            self._terms.retries,
            batch.queue,
            batch.sharding_key,
            delayed=batch.delayed,
            waits=False,
            idempotent=self._terms.idempotent,
        )
        try:
            await self._sends.send(batch.topic, bytearray(batch.records), batch.sizes, terms)
        except RayMQError as error:
            refused = is_permanent(error, terms)
            if not refused:
                self._topic_backoffs.failed(batch.topic)
            await self._written(partial(self._file.failed, batch.id, _first_line(error), refused=refused))
        except Exception:  # noqa: BLE001 - an error of one batch must not affect the others
            _log.exception("batch %d of the outbox cannot be sent", batch.id)
            await self._written(partial(self._file.failed, batch.id, "an unexpected error", refused=True))
        else:
            await self._written(partial(self._file.remove, batch.id))
            self._topic_backoffs.stored(batch.topic)

    def _next(self, resting: list[str]) -> OutboxBatch | None:
        """Return the next batch if this process may send now. Runs on the file's thread."""
        while True:
            began = boottime()
            if not self._file.claim(self._terms.timeout + _CLAIM_MARGIN_SECONDS):
                return None
            batch = self._file.next(resting)
            if boottime() - began < _CLAIM_MARGIN_SECONDS / 2:  # else the file was locked for long: renew the claim
                return batch

    async def _written(self, change: Callable[[], object]) -> None:
        """Write a batch's outcome, however long it takes, so that it is not sent again."""
        await self._patiently(change, float("inf"))

    async def _patiently(self, call: Callable[[], _T], seconds: float) -> _T:
        """Run `call` on the file's thread, and retry it for `seconds` while it fails."""
        until = boottime() + seconds
        backoff = Backoff(first=0.1, cap=5.0)
        while True:
            try:
                return await self._aside(call)
            except sqlite3.Error as error:
                wait = backoff.next_delay()
                if boottime() + wait >= until:
                    raise
                _log.warning("the outbox cannot be written, it is tried again: %s", error)
                await asyncio.sleep(wait)

    async def _aside(self, call: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def _look_again(self) -> None:
        try:
            async with asyncio.timeout(self._topic_backoffs.seconds(_LOOK_SECONDS)):  # other processes may add batches
                await self._kept.wait()
        except TimeoutError:
            return


class _TopicBackoffs:
    """The topics whose batches no broker accepted, each with the time of its next attempt.

    The topics do not delay each other.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, tuple[Backoff, float]] = {}

    def failed(self, topic: str) -> None:
        """Record that no broker accepted the topic's oldest batch."""
        backoff, _ = self._until.get(topic) or (Backoff(cap=_REST_SECONDS), 0.0)
        self._until[topic] = backoff, self._clock() + backoff.next_delay()

    def stored(self, topic: str) -> None:
        """Record that the topic's oldest batch was stored."""
        self._until.pop(topic, None)

    def topics(self) -> list[str]:
        """Return the topics that must not be tried now."""
        now = self._clock()
        return [topic for topic, (_, until) in self._until.items() if until > now]

    def seconds(self, most: float) -> float:
        """Return the seconds until the next topic is tried, at most `most`."""
        now = self._clock()
        return min([most, *(until - now for _, until in self._until.values() if until > now)])


def belongs_in_outbox(error: RayMQError, terms: SendParameters) -> bool:
    """Return True if messages that failed with `error` are put into the outbox."""
    return not isinstance(error, ClientClosed) and not is_permanent(error, terms)


def is_permanent(error: RayMQError, terms: SendParameters) -> bool:
    """Return True if another attempt would fail, too.

    That is so if the input is not valid or a broker itself refused it. A broker that is drained refuses only for
    itself: if no queue is fixed, other brokers may accept the messages.
    """
    if isinstance(error, SendError | BrokerUnavailable | ServerBusy | ClientClosed):
        return False
    if terms.queue is None and isinstance(error, QUEUE_ERRORS):
        return False
    return isinstance(error, InvalidInput) or error.refused_by is not None


def _first_line(error: RayMQError) -> str:
    """Return the error's first line in a form that the file can store.

    The text from a broker may contain unpaired surrogates.
    """
    return f"{type(error).__name__}: {error}".splitlines()[0].encode(errors="backslashreplace").decode()


def _is_given_up() -> bool:
    """Return True if the caller itself was cancelled, not only the task that it awaits."""
    caller = asyncio.current_task()
    return caller is None or bool(caller.cancelling())
