"""Sending with an outbox: what no broker took is kept in a file, and sent later in the background, in order."""

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
from raymq.actors.sending.sender import Sends, Sent, Sizes, Terms
from raymq.actors.supervision import Supervisor
from raymq.client.produce.outbox_file import KeptBatch, OutboxFile, ToKeep, UnsentSend
from raymq.storage.clock import boottime
from raymq.storage.records.record import split

#: How often the file is looked at while it is empty or another process sends.
_LOOK_SECONDS: Final = 1.0
#: A sender that died is replaced this long after what its last send could have taken.
_CLAIM_MARGIN_SECONDS: Final = 5.0
#: The longest pause between two tries of a topic whose kept batches nobody takes.
_REST_SECONDS: Final = 15.0
#: How long who closes it waits for the answer to a kept batch that is on its way: else it would be sent once more.
_LAST_SECONDS: Final = 3.0
#: What says that other queues are meant than those of an old route: it has fewer, or a broker is drained.
NOT_THAT_QUEUE: Final = (QueueNotFound, PermissionDenied)
#: So many sends that failed are written into the file at once, and those that wait for longer.
_KEPT_TOGETHER: Final = 100
#: How long a send that failed tries to write what it could not send into a file that is locked or full.
_KEEP_SECONDS: Final = 30.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class OutboxSends:
    """As the `Sends` that it is wrapped around, on their event loop. Until `close` it also sends what is in the file.

    A failed send raises what it would without an outbox, with `.kept` set: the messages go out later, and sending them
    again would send them twice. Where the outcome was unknown they may be stored already. `close` ends the sends that
    are under way so, too. Only a broker's own answer refuses messages for good: that the routes do not know a topic or
    a queue may be so because the brokers are away.

    The file is only touched on a thread of its own: it may be locked by other processes for long.
    """

    def __init__(self, sends: Sends, file: OutboxFile, terms: Terms, owner: object = None) -> None:
        """`terms` are those on which kept batches are sent; `owner` lives as long as this sends."""
        self._sends = sends
        self._file = file
        self._terms = terms
        self._owner = owner
        self._thread = ThreadPoolExecutor(1, "raymq-outbox")
        self._kept = asyncio.Event()
        #: What is to be written into the file, in its order.
        self._to_keep: dict[object, UnsentSend] = {}
        #: Whether a kept batch is on its way, or what became of it is not written down yet.
        self._emptying = False
        #: Whether nothing is sent any more, and what still comes is kept; whether the file is closed, too.
        self._closing_down = self._closed = False
        #: Sends under way; a send is busy until it has an outcome, and that is in the file where it has to be.
        self._sending: set[asyncio.Future[Sent]] = set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = Supervisor("outbox").keep("sending of what is kept", self._empty)
        self._closing: asyncio.Task[None] | None = None
        self._resting = _Resting(boottime)

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; what it raises says whether the batch is kept. ClientClosed after `close`."""
        if self._closed:
            raise ClientClosed("the outbox is closed")
        self._busy += 1
        self._idle.clear()
        try:
            if self._closing_down:
                raise NotStored("closed before it was its turn")
            return await self._send(topic, records, sizes, terms)
        except RayMQError as error:
            if not terms.by_key and is_to_be_kept(error, terms):
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

    async def _send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        sending = asyncio.ensure_future(self._sends.send(topic, records, sizes, terms))
        self._sending.add(sending)
        try:
            return await sending
        finally:
            self._sending.discard(sending)

    async def keep(self, topic: str, parts: Sequence[tuple[bytearray, Terms]], error: RayMQError) -> None:
        """Put what was not sent into the file, each batch with its terms, all of it or nothing, and say so in the error
        of the send.
        """
        batches = [
            # An idempotent sender may have written its number into the records: their sizes are taken anew.
            ToKeep(records, split(memoryview(records)), terms.queue, terms.sharding_key, terms.delayed)
            for records, terms in parts
        ]
        mine = object()
        self._to_keep[mine] = UnsentSend(topic, batches, _first_line(error))
        try:
            await self._patiently(partial(self._keep_with_others, mine), _KEEP_SECONDS)
        except sqlite3.Error as failure:
            error.remedy = f"send it again: the outbox could not be written ({failure})"
            raise error from failure
        finally:
            self._to_keep.pop(mine, None)
        self._kept.set()
        error.kept = True
        error.remedy = "it is in the outbox and will be sent from there"

    def _keep_with_others(self, mine: object) -> None:
        """On the file's thread: keep what is before it, and what comes behind it along, unless somebody has done so.

        When brokers go away the tries of many sends run out together, and each write waits for the disk.
        """
        waiting = list(self._to_keep.items())
        last = next((place for place, (who, _) in enumerate(waiting) if who is mine), None)
        if last is not None:
            together = waiting[: last + _KEPT_TOGETHER]
            self._file.keep(*(send for _, send in together))
            for who, _ in together:
                self._to_keep.pop(who, None)

    async def close(self, gathered: Callable[[], Awaitable[None]] | None = None) -> None:
        """End the sends that are under way, which are kept, and send no more from the file; what is in it stays.

        A kept batch that is on its way has a few seconds to be answered. Whoever else has begun it is waited for.

        Args:
            gathered: ends what waits to be sent by this, by which it is kept.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(gathered))
        await asyncio.shield(self._closing)

    async def close_if_idle(self) -> None:
        """`close`, unless sends are under way: these have their time to be answered."""
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
        """Send the oldest batch of each topic until it is stored or refused, then the next one, until it is closed."""
        trouble = Backoff()
        while not self._closing_down:
            self._kept.clear()
            try:
                batch = await self._aside(self._next, self._resting.topics())
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

    async def _send_kept(self, batch: KeptBatch) -> None:
        """Try one batch of the file, and write down what became of it."""
        # A topic whose brokers are away must not hold up the others: it rests, and is tried again.
        terms = Terms(
            self._terms.timeout,
            self._terms.retries,
            batch.queue,
            batch.sharding_key,
            delayed=batch.delayed,
            waits=False,
        )
        try:
            await self._sends.send(batch.topic, bytearray(batch.records), batch.sizes, terms)
        except RayMQError as error:
            refused = is_for_good(error, terms)
            if not refused:
                self._resting.failed(batch.topic)
            await self._written(partial(self._file.failed, batch.id, _first_line(error), refused=refused))
        except Exception:  # noqa: BLE001 - one batch's trouble, whatever it is, is not that of the others
            _log.exception("batch %d of the outbox cannot be sent", batch.id)
            await self._written(partial(self._file.failed, batch.id, "an unexpected error", refused=True))
        else:
            await self._written(partial(self._file.remove, batch.id))
            self._resting.stored(batch.topic)

    def _next(self, resting: list[str]) -> KeptBatch | None:
        """On the file's thread: what is to be sent now, by us."""
        while True:
            began = boottime()
            if not self._file.claim(self._terms.timeout + _CLAIM_MARGIN_SECONDS):
                return None
            batch = self._file.next(resting)
            if boottime() - began < _CLAIM_MARGIN_SECONDS / 2:  # else the file was locked for long: claim it anew
                return batch

    async def _written(self, change: Callable[[], object]) -> None:
        """Write down what became of a batch, however long it takes: else it would be sent once more."""
        await self._patiently(change, float("inf"))

    async def _patiently(self, call: Callable[[], _T], seconds: float) -> _T:
        """`call` on the file's thread, again and again while it fails, for so long."""
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
            async with asyncio.timeout(self._resting.seconds(_LOOK_SECONDS)):  # other processes may put something in
                await self._kept.wait()
        except TimeoutError:
            return


class _Resting:
    """The topics whose batches nobody took, each until it is tried again: one's trouble is not that of the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, tuple[Backoff, float]] = {}

    def failed(self, topic: str) -> None:
        """Nobody took its oldest batch."""
        backoff, _ = self._until.get(topic) or (Backoff(cap=_REST_SECONDS), 0.0)
        self._until[topic] = backoff, self._clock() + backoff.next_delay()

    def stored(self, topic: str) -> None:
        """Its oldest batch was taken."""
        self._until.pop(topic, None)

    def topics(self) -> list[str]:
        """Those that are not to be tried now."""
        now = self._clock()
        return [topic for topic, (_, until) in self._until.items() if until > now]

    def seconds(self, most: float) -> float:
        """Until the next of them is tried; at most so long."""
        now = self._clock()
        return min([most, *(until - now for _, until in self._until.values() if until > now)])


def is_to_be_kept(error: RayMQError, terms: Terms) -> bool:
    """Whether what failed so is put into the outbox."""
    return not isinstance(error, ClientClosed) and not is_for_good(error, terms)


def is_for_good(error: RayMQError, terms: Terms) -> bool:
    """Whether another try would be in vain, too: the input is wrong, or a broker itself has refused it.

    A broker that does not take it, as it is drained, has not refused it for others, where no queue is fixed.
    """
    if isinstance(error, SendError | BrokerUnavailable | ServerBusy | ClientClosed):
        return False
    if terms.queue is None and isinstance(error, NOT_THAT_QUEUE):
        return False
    return isinstance(error, InvalidInput) or error.refused_by is not None


def _first_line(error: RayMQError) -> str:
    """As the file can hold it: what a broker says may have halves of characters."""
    return f"{type(error).__name__}: {error}".splitlines()[0].encode(errors="backslashreplace").decode()


def _is_given_up() -> bool:
    """Whether who awaits this was cancelled itself, and not only what it awaits."""
    caller = asyncio.current_task()
    return caller is None or bool(caller.cancelling())
