"""Send the messages of one queue one batch after the other, and join waiting batches.

The order of sending to a queue is the order of delivery, so only one batch per queue is in flight. If each small batch
waited for all batches before it, a queue would handle only as many batches per second as its broker sends sequential
responses. With more batches, the waiting times would grow until every send times out. So each batch takes along the
batches that wait behind it. Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, Generic, TypeVar

import numpy as np

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.actors.request_limits import MAX_MESSAGES
from raymq.actors.sending.send_plan import SendParameters
from raymq.client.message import Message
from raymq.client.produce.message_batch import MakeOutcomes, Outcome
from raymq.client.produce.message_encoder import Sizes

_Key = TypeVar("_Key", bound=Hashable)
#: The key numbers, records and sizes of messages.
Encoded = tuple[Sequence[str | int], bytearray, Sizes]
#: Sends messages of one topic on these terms, and returns the function that makes their results.
Store = Callable[[list[Message], Encoded, SendParameters], Awaitable[MakeOutcomes]]
#: If at least this share of its time budget is left, a send counts as not having waited.
_UNTOUCHED: Final = 0.99


@dataclass(slots=True)
class _Mutex:
    """The lock of one key.

    `users` is the number of tasks that hold it or wait for it.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedMutex(Generic[_Key]):
    """A mutex per key. A key without holder and waiters uses no memory."""

    def __init__(self) -> None:
        self._turns: dict[_Key, _Mutex] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def take(self, key: _Key, seconds: float) -> AsyncIterator[bool]:
        """Hold the key's lock. Yield False if it was not acquired within `seconds`."""
        turn = self._turns.setdefault(key, _Mutex())
        turn.users += 1
        taken = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    taken = await turn.lock.acquire()
            yield taken
        finally:
            if taken:
                turn.lock.release()
            turn.users -= 1
            if not turn.users:
                del self._turns[key]


@dataclass(eq=False, slots=True)
class _Part:
    """The messages of one caller.

    `terms` fix their queue. `deadline` is the monotonic time until which they may wait and be sent. `taken` is True
    once they are being sent.
    """

    messages: list[Message]
    encoded: Encoded
    terms: SendParameters
    deadline: float
    taken: bool = False
    outcomes: asyncio.Future[MakeOutcomes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class OrderedQueueSender:
    """The waiting batches of one producer by queue. A queue without batches uses no memory."""

    def __init__(self, store: Store, most_bytes: int) -> None:
        """Initialize the sender.

        Args:
            store: sends messages.
            most_bytes: the most bytes of records that are sent together. The messages of one caller may be more.
        """
        self._store = store
        self._most_bytes = most_bytes
        self._turns: KeyedMutex[MessageQueue] = KeyedMutex()
        self._lines: dict[MessageQueue, deque[_Part]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    async def send(
        self, queue: MessageQueue, messages: list[Message], encoded: Encoded, terms: SendParameters, deadline: float
    ) -> MakeOutcomes:
        """Send messages to a queue, after all earlier ones. Raise the errors of `store`.

        Args:
            deadline: the monotonic time until which the messages may wait and be sent.
        """
        part = _Part(messages, encoded, terms, deadline)
        line = self._lines.setdefault(queue, deque())
        line.append(part)
        try:
            async with self._turns.take(queue, deadline - time.monotonic()) as in_time:
                if in_time and not part.taken:
                    await self._send(_joined(line, self._most_bytes))
        finally:
            if not part.taken:  # its deadline has passed, or the send was cancelled
                line.remove(part)
            if not line:
                self._lines.pop(queue, None)
        if not part.taken:
            return await self._store(messages, encoded, replace(terms, timeout=0.0))
        return await part.outcomes

    async def _send(self, parts: list[_Part]) -> None:
        """Send parts together, and set the outcomes of each."""
        terms = parts[0].terms
        remaining = max(0.0, min(part.deadline for part in parts) - time.monotonic())
        if remaining < _UNTOUCHED * terms.timeout:  # else keep equal terms, which can be joined with others
            terms = replace(terms, timeout=remaining)
        messages = [message for part in parts for message in part.messages]
        try:
            make_outcomes = await self._store(messages, _as_one([part.encoded for part in parts]), terms)
        except InvalidInput as error:
            if len(parts) > 1:  # send each alone: one invalid part must not fail the others
                for part in parts:
                    await self._send([part])
                return
            parts[0].outcomes.set_exception(error)
        except Exception as error:  # noqa: BLE001 - any error is the outcome of all of them
            for part in parts:
                part.outcomes.set_exception(error)
        except BaseException:
            for part in parts:
                part.outcomes.cancel()
            raise
        else:
            _share(cache(make_outcomes), parts)


def _joined(line: deque[_Part], most_bytes: int) -> list[_Part]:
    """Remove and return the parts of a line that are sent together.

    These are the first part and parts behind it with the same terms. They share the time of the part with the least
    time left, so each part has at least half of the remaining time of any other.
    """
    parts = [line.popleft()]
    first, now = parts[0], time.monotonic()
    least = most = first.deadline
    size, count = len(first.encoded[1]), len(first.messages)
    while line:
        size, count = size + len(line[0].encoded[1]), count + len(line[0].messages)
        least, most = min(least, line[0].deadline), max(most, line[0].deadline)
        if size > most_bytes or count > MAX_MESSAGES or line[0].terms != first.terms:
            break
        if most - now > 2 * max(0.0, least - now):
            break
        parts.append(line.popleft())
    for part in parts:
        part.taken = True
    return parts


def _as_one(encoded: Sequence[Encoded]) -> Encoded:
    if len(encoded) == 1:
        return encoded[0]
    numbers = [number for each, _, _ in encoded for number in each]
    records = bytearray().join(each for _, each, _ in encoded)
    return numbers, records, np.concatenate([each for _, _, each in encoded])


def _share(make_outcomes: MakeOutcomes, parts: Sequence[_Part]) -> None:
    first = 0
    for part in parts:
        mine = slice(first, first + len(part.messages))
        first = mine.stop

        def outcomes(mine: slice = mine) -> Sequence[Outcome]:
            return make_outcomes()[mine]

        part.outcomes.set_result(make_outcomes if len(parts) == 1 else outcomes)
