"""Sending with an outbox: what no broker took is kept in a file, and sent later in the background, in order."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, ClientClosed, OutcomeUnknown, RayMQError, SendError, ServerBusy
from raymq.actors.sending.sender import Sends, Sent, Sizes, Terms
from raymq.client.produce.outbox_file import KeptBatch, OutboxFile
from raymq.storage.clock import boottime
from raymq.storage.records.record import split

#: How often the file is looked at while it is empty or another process sends.
_LOOK_SECONDS: Final = 1.0
#: A sender that died is replaced this long after what its last send could have taken.
_CLAIM_MARGIN_SECONDS: Final = 5.0
#: How long a send that failed tries to write what it could not send into a file that is locked or full.
_KEEP_SECONDS: Final = 30.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class OutboxSends:
    """As the `Sends` that it is wrapped around, on their event loop. Until `close` it also sends what is in the file.

    A failed send raises what it would without an outbox, with `.kept` set: the messages go out later, and sending them
    again would send them twice. Where the outcome was unknown they may be stored already. `close` ends the sends that
    are under way so, too.

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
        self._closed = False
        #: Sends under way; a send is busy until it has an outcome, and that is in the file where it has to be.
        self._sending: set[asyncio.Future[Sent]] = set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.get_running_loop().create_task(self._empty())
        self._closing: asyncio.Task[None] | None = None

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; NotStored and OutcomeUnknown say whether the batch is kept. ClientClosed after `close`."""
        if self._closed:
            raise ClientClosed("the outbox is closed")
        sending = asyncio.ensure_future(self._sends.send(topic, records, sizes, terms))
        self._sending.add(sending)
        self._busy += 1
        self._idle.clear()
        try:
            return await sending
        except SendError as error:
            await self._keep(topic, records, terms, error)
            raise
        except asyncio.CancelledError:
            if _is_given_up():
                raise
            ended = OutcomeUnknown("closed before an answer came")
            await self._keep(topic, records, terms, ended)
            raise ended from None
        finally:
            self._sending.discard(sending)
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def _keep(self, topic: str, records: bytearray, terms: Terms, error: SendError) -> None:
        """Put what was not sent into the file, and say so in its error."""
        try:
            # An idempotent sender may have written its number into the records: their sizes are taken anew.
            await self._patiently(
                partial(
                    self._file.keep,
                    topic,
                    records,
                    split(memoryview(records)),
                    queue=terms.queue,
                    sharding_key=terms.sharding_key,
                    delayed=terms.delayed,
                    error=_first_line(error),
                ),
                _KEEP_SECONDS,
            )
        except sqlite3.Error as failure:
            error.remedy = f"send it again: the outbox could not be written ({failure})"
            raise error from failure
        self._kept.set()
        error.kept = True
        error.remedy = "it is in the outbox and will be sent from there"

    async def close(self) -> None:
        """End the sends that are under way, which are kept, and send no more from the file; what is in it stays.

        Whoever else has begun it is waited for.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def close_if_idle(self) -> None:
        """`close`, unless sends are under way: these have their time to be answered."""
        if not self._busy:
            await self.close()

    async def _close(self) -> None:
        self._closed = True
        self._task.cancel()
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._idle.wait()
        await self._aside(self._file.close)
        self._thread.shutdown(wait=False)

    async def _empty(self) -> None:
        """Send the oldest batch until it is stored or refused, then the next one, without end."""
        backoff, trouble = Backoff(), Backoff()
        while True:
            self._kept.clear()
            try:
                batch = await self._aside(self._next)
            except sqlite3.Error as error:
                _log.warning("the outbox cannot be read: %s", error)
                await asyncio.sleep(trouble.next_delay())
                continue
            trouble.reset()
            if batch is None:
                await self._look_again()
                continue
            terms = Terms(
                self._terms.timeout, self._terms.retries, batch.queue, batch.sharding_key, delayed=batch.delayed
            )
            try:
                await self._sends.send(batch.topic, bytearray(batch.records), batch.sizes, terms)
            except RayMQError as error:
                later = isinstance(error, SendError | BrokerUnavailable | ServerBusy)
                reason = _first_line(error)
                await self._written(partial(self._file.failed, batch.id, reason, refused=not later))
                if later:
                    await asyncio.sleep(backoff.next_delay())
            except Exception:  # noqa: BLE001 - one batch's trouble, whatever it is, is not that of the others
                _log.exception("batch %d of the outbox cannot be sent", batch.id)
                await self._written(partial(self._file.failed, batch.id, "an unexpected error", refused=True))
            else:
                await self._written(partial(self._file.remove, batch.id))
                backoff.reset()

    def _next(self) -> KeptBatch | None:
        """On the file's thread: what is to be sent now, by us."""
        while True:
            began = boottime()
            if not self._file.claim(self._terms.timeout + _CLAIM_MARGIN_SECONDS):
                return None
            batch = self._file.next()
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
            async with asyncio.timeout(_LOOK_SECONDS):  # another process may have put something in
                await self._kept.wait()
        except TimeoutError:
            return


def _first_line(error: RayMQError) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _is_given_up() -> bool:
    """Whether who awaits this was cancelled itself, and not only what it awaits."""
    caller = asyncio.current_task()
    return caller is None or bool(caller.cancelling())
