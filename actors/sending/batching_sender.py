"""Join the batches of several callers into one append.

The shared producer does this for thousands of short tasks. An idempotent producer does it for the messages that it
gathers, because each queue takes only one numbered batch at a time.

While an append is in progress, batches for the same topic with the same parameters are gathered. The next append takes
all of them, up to a part's size. So a caller waits at most for the appends before its own, and a single caller does not
wait. An append ends when the first of its callers has no time left. To keep that from cutting the others short, a batch
joins an append only if it has at most twice the time left of the append's first batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from raymq.actors.errors import InvalidInput, RayMQError
from raymq.actors.protocol import RecordPositions
from raymq.actors.request_limits import MAX_MESSAGES, PART_BYTES
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import RecordSender, SendOutcome, Sizes

#: One append on the wire, one in the broker.
_LANES: Final = 2


@dataclass(slots=True)
class _Entry:
    records: bytearray
    sizes: Sizes
    deadline: float
    done: asyncio.Future[SendOutcome]


class BatchingSender:
    """A `RecordSender` around another one, on the same event loop, that joins batches."""

    def __init__(self, sends: RecordSender, lanes: int = _LANES) -> None:
        """Wrap `sends`.

        `lanes`: the number of concurrent appends with the same topic and parameters if no queue is fixed.
        """
        self._sends = sends
        self._lanes = lanes
        self._waiting: dict[tuple[str, SendParameters], deque[_Entry]] = {}
        self._running: dict[tuple[str, SendParameters], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        """Send records, as `Sender.send`, perhaps joined with other batches.

        The result has the positions of the caller's own records. The time budget starts with this call.
        """
        loop = asyncio.get_running_loop()
        key = (topic, terms)
        entry = _Entry(records, sizes, time.monotonic() + terms.timeout, loop.create_future())
        self._waiting.setdefault(key, deque()).append(entry)
        fixed = terms.queue is not None or terms.sharding_key is not None
        if self._running.get(key, 0) < (1 if fixed else self._lanes):
            self._running[key] = self._running.get(key, 0) + 1
            task = loop.create_task(self._work(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await entry.done

    async def _work(self, key: tuple[str, SendParameters]) -> None:
        """Send the gathered batches until none is left."""
        topic, terms = key
        waiting = self._waiting[key]
        try:
            while waiting:
                entries = [waiting.popleft()]
                size, count = len(entries[0].records), len(entries[0].sizes)
                now = time.monotonic()
                until = now + 2 * (entries[0].deadline - now)
                # Delayed batches are not joined: some have a delay level and some a time, and no append may mix both.
                while waiting and not terms.delayed:
                    size, count = size + len(waiting[0].records), count + len(waiting[0].sizes)
                    if size > PART_BYTES or count > MAX_MESSAGES or waiting[0].deadline > until:
                        break
                    entries.append(waiting.popleft())
                # A cancelled caller may send its batch elsewhere: leave it out of appends that have not begun.
                if pending := [entry for entry in entries if not entry.done.done()]:
                    await self._send_together(topic, pending, terms)
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                self._running.pop(key)
                self._waiting.pop(key, None)

    async def _send_together(self, topic: str, entries: list[_Entry], terms: SendParameters) -> None:
        remaining = min(entry.deadline for entry in entries) - time.monotonic()
        try:
            replace(terms, timeout=remaining).check_time()
            records = bytearray().join(entry.records for entry in entries)
            sizes = np.concatenate([entry.sizes for entry in entries])
            sent = await _wanted(entries, self._sends.send(topic, records, sizes, replace(terms, timeout=remaining)))
        except InvalidInput as error:
            if len(entries) == 1:
                _fail(entries, error)
            else:  # send one by one: only the invalid batch must fail
                for entry in entries:
                    await self._send_together(topic, [entry], terms)
            return
        except Exception as error:  # noqa: BLE001 - any error is the outcome of these messages; others wait
            _fail(entries, error)
            return
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if all(entry.done.cancelled() for entry in entries) and (me is None or not me.cancelling()):
                return  # it was cancelled because all callers have given up
            for entry in entries:
                entry.done.cancel()
            raise
        first = 0
        for entry in entries:
            mine = slice(first, first + len(entry.sizes))
            first = mine.stop
            placed = sent.placed
            places = RecordPositions(
                placed.topic, placed.queue_ids[mine], placed.queue_offsets[mine], placed.physical_offsets[mine]
            )
            if not entry.done.done():
                entry.done.set_result(sent._replace(placed=places))


async def _wanted(entries: list[_Entry], send: Coroutine[Any, Any, SendOutcome]) -> SendOutcome:
    """Return the outcome of the send, and cancel it once all callers have given up.

    These callers may send their batches elsewhere.
    """
    sending = asyncio.ensure_future(send)

    def given_up(_: asyncio.Future[SendOutcome]) -> None:
        if all(entry.done.cancelled() for entry in entries):
            sending.cancel()

    for entry in entries:
        entry.done.add_done_callback(given_up)
    return await sending


def _fail(entries: list[_Entry], error: Exception) -> None:
    """Fail each caller with its own copy of a RayMQError.

    An outbox notes in the copy whether it keeps that caller's messages.
    """
    for entry in entries:
        if not entry.done.done():
            each = copy(error) if isinstance(error, RayMQError) else error
            each.__cause__ = error.__cause__
            entry.done.set_exception(each.with_traceback(error.__traceback__))
