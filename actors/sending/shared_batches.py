"""Batches of many callers joined into one: what the shared producer does for thousands of short tasks, and an
idempotent one for what it gathers, since each queue takes one numbered batch at a time.

While an append is under way, what arrives for the same topic on the same terms is gathered; the next append takes all
of it, up to a part's size. So nobody waits longer than for the appends before his own, and a single caller waits for
none. An append ends when the first of its callers has no time left: so none is joined with one who has less than half
of his time.
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
from raymq.actors.protocol import Placed
from raymq.actors.request_limits import MAX_MESSAGES, PART_BYTES
from raymq.actors.sending.sender import Sends, Sent, Sizes, Terms

#: One on the wire, one in the broker.
_LANES: Final = 2


@dataclass(slots=True)
class _Entry:
    records: bytearray
    sizes: Sizes
    deadline: float
    done: asyncio.Future[Sent]


class PooledSends:
    """As the `Sends` that it is wrapped around, on their event loop."""

    def __init__(self, sends: Sends, lanes: int = _LANES) -> None:
        """`lanes`: appends of one topic and terms that are under way together where no queue is fixed."""
        self._sends = sends
        self._lanes = lanes
        self._waiting: dict[tuple[str, Terms], deque[_Entry]] = {}
        self._running: dict[tuple[str, Terms], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `Sender.send`. Each caller gets the places of his own records, and the budget runs from here."""
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

    async def _work(self, key: tuple[str, Terms]) -> None:
        """Send what waits until nothing does."""
        topic, terms = key
        waiting = self._waiting[key]
        try:
            while waiting:
                entries = [waiting.popleft()]
                size, count = len(entries[0].records), len(entries[0].sizes)
                now = time.monotonic()
                until = now + 2 * (entries[0].deadline - now)
                # Delayed ones go alone: some wait for a level and some for a time, which no append may mix.
                while waiting and not terms.delayed:
                    size, count = size + len(waiting[0].records), count + len(waiting[0].sizes)
                    if size > PART_BYTES or count > MAX_MESSAGES or waiting[0].deadline > until:
                        break
                    entries.append(waiting.popleft())
                # Who has given up perhaps sends it elsewhere: his goes with none that was not begun by then.
                if wanted := [entry for entry in entries if not entry.done.done()]:
                    await self._send_together(topic, wanted, terms)
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                self._running.pop(key)
                self._waiting.pop(key, None)

    async def _send_together(self, topic: str, entries: list[_Entry], terms: Terms) -> None:
        left = min(entry.deadline for entry in entries) - time.monotonic()
        try:
            replace(terms, timeout=left).check_time()
            records = bytearray().join(entry.records for entry in entries)
            sizes = np.concatenate([entry.sizes for entry in entries])
            sent = await _wanted(entries, self._sends.send(topic, records, sizes, replace(terms, timeout=left)))
        except InvalidInput as error:
            if len(entries) == 1:
                _fail(entries, error)
            else:  # one caller's fault is not the others'
                for entry in entries:
                    await self._send_together(topic, [entry], terms)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what became of these, and others wait behind them
            _fail(entries, error)
            return
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if all(entry.done.cancelled() for entry in entries) and (me is None or not me.cancelling()):
                return  # it was ended for that
            for entry in entries:
                entry.done.cancel()
            raise
        first = 0
        for entry in entries:
            mine = slice(first, first + len(entry.sizes))
            first = mine.stop
            placed = sent.placed
            places = Placed(
                placed.topic, placed.queue_ids[mine], placed.queue_offsets[mine], placed.physical_offsets[mine]
            )
            if not entry.done.done():
                entry.done.set_result(sent._replace(placed=places))


async def _wanted(entries: list[_Entry], send: Coroutine[Any, Any, Sent]) -> Sent:
    """What the send comes to, which is ended when all of its callers have given up: they perhaps send it elsewhere."""
    sending = asyncio.ensure_future(send)

    def given_up(_: asyncio.Future[Sent]) -> None:
        if all(entry.done.cancelled() for entry in entries):
            sending.cancel()

    for entry in entries:
        entry.done.add_done_callback(given_up)
    return await sending


def _fail(entries: list[_Entry], error: Exception) -> None:
    """Each gets his own of ours: an outbox says in it whether it has that one's messages."""
    for entry in entries:
        if not entry.done.done():
            each = copy(error) if isinstance(error, RayMQError) else error
            each.__cause__ = error.__cause__
            entry.done.set_exception(each.with_traceback(error.__traceback__))
