"""Sending with an outbox: what no broker took is kept in a file, and sent later in the background, in order."""

from __future__ import annotations

import asyncio
from typing import Final

from raymq.actors.core.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, RayMQError, SendError, ServerBusy
from raymq.actors.sending import Sends, Sent, Sizes, Terms
from raymq.client.outbox_file import OutboxFile
from raymq.storage.record import split

#: How often the file is looked at while it is empty or another process sends.
_LOOK_SECONDS: Final = 1.0
#: A sender that died is replaced this long after what its last send could have taken.
_CLAIM_MARGIN_SECONDS: Final = 5.0


class OutboxSends:
    """As the `Sends` that it is wrapped around, on their event loop. Until `close` it also sends what is in the file.

    A failed send raises what it would without an outbox, with `.kept` set: the messages go out later, and sending them
    again would send them twice. Where the outcome was unknown they may be stored already.
    """

    def __init__(self, sends: Sends, file: OutboxFile, terms: Terms) -> None:
        """`terms` are those on which kept batches are sent."""
        self._sends = sends
        self._file = file
        self._terms = terms
        self._kept = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._empty())

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`; NotStored and OutcomeUnknown say that the batch is kept."""
        try:
            return await self._sends.send(topic, records, sizes, terms)
        except SendError as error:
            self._file.keep(
                topic,
                records,
                split(memoryview(records)),  # an idempotent sender may have written its number into them
                queue=terms.queue,
                sharding_key=terms.sharding_key,
                delayed=terms.delayed,
                error=_first_line(error),
            )
            self._kept.set()
            error.kept = True
            error.remedy = "it is in the outbox and will be sent from there"
            raise

    async def close(self) -> None:
        """Send no more from the file; what is in it stays."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._file.close()

    async def _empty(self) -> None:
        """Send the oldest batch until it is stored or refused, then the next one, without end."""
        backoff = Backoff()
        while True:
            if not self._file.claim(self._terms.timeout + _CLAIM_MARGIN_SECONDS):
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            batch = self._file.next()
            if batch is None:
                self._kept.clear()
                await self._look_again()
                continue
            terms = Terms(
                self._terms.timeout, self._terms.retries, batch.queue, batch.sharding_key, delayed=batch.delayed
            )
            try:
                await self._sends.send(batch.topic, bytearray(batch.records), batch.sizes, terms)
            except RayMQError as error:
                later = isinstance(error, SendError | BrokerUnavailable | ServerBusy)
                self._file.failed(batch.id, _first_line(error), refused=not later)
                if later:
                    await asyncio.sleep(backoff.next_delay())
            else:
                self._file.remove(batch.id)
                backoff.reset()

    async def _look_again(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):  # another process may have put something in
                await self._kept.wait()
        except TimeoutError:
            return


def _first_line(error: RayMQError) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
