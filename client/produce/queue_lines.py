"""Messages of one queue that wait for those before them, and go together when it is their turn.

What goes to one queue goes one after the other, so that order of sending is order of delivery. If each batch waited for
all before it, however few messages it has, a queue would take no more batches a second than its broker gives answers
one after the other; where more come, each would wait longer than the one before, until nothing is sent in its time any
more. So whoever's turn it is takes along who waits behind it. Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import numpy as np

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.actors.request_limits import MAX_MESSAGES
from raymq.actors.sending.sender import Terms
from raymq.client.message import Message
from raymq.client.produce.encoding import Sizes
from raymq.client.produce.message_batch import MakeOutcomes, Outcome
from raymq.client.produce.turns import KeyedTurns

#: The messages' key numbers, records and sizes.
Encoded = tuple[Sequence[str | int], bytearray, Sizes]
#: Sends messages of one topic on these terms; returns what makes their results.
Store = Callable[[Sequence[Message], Encoded, Terms], Awaitable[MakeOutcomes]]
#: A send that has so much of its budget has not waited.
_UNTOUCHED: Final = 0.99


@dataclass(eq=False, slots=True)
class _Part:
    """What one caller sends. `terms` fix its queue, `deadline` is the monotonic time until which it may wait and be
    sent; `taken` once it is on its way.
    """

    messages: Sequence[Message]
    encoded: Encoded
    terms: Terms
    deadline: float
    taken: bool = False
    outcomes: asyncio.Future[MakeOutcomes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class QueueLines:
    """One producer's. Of a queue that nothing waits for nothing is kept."""

    def __init__(self, store: Store, most_bytes: int) -> None:
        """`most_bytes` of records go together, or those of one caller."""
        self._store = store
        self._most_bytes = most_bytes
        self._turns: KeyedTurns[MessageQueue] = KeyedTurns()
        self._lines: dict[MessageQueue, deque[_Part]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    async def send(
        self, queue: MessageQueue, messages: Sequence[Message], encoded: Encoded, terms: Terms, deadline: float
    ) -> MakeOutcomes:
        """Send messages to a queue, behind those that were sent to it before. Raises what `store` does.

        Args:
            deadline: the monotonic time until which they may wait and be sent.
        """
        part = _Part(messages, encoded, terms, deadline)
        line = self._lines.setdefault(queue, deque())
        line.append(part)
        try:
            async with self._turns.take(queue, deadline - time.monotonic()) as in_time:
                if in_time and not part.taken:
                    await self._send(_joined(line, self._most_bytes))
        finally:
            if not part.taken:  # its time is over, or somebody ends it
                line.remove(part)
            if not line:
                self._lines.pop(queue, None)
        if not part.taken:
            return await self._store(messages, encoded, replace(terms, timeout=0.0))
        return await part.outcomes

    async def _send(self, parts: list[_Part]) -> None:
        """Send them together; each gets its own outcomes."""
        terms = parts[0].terms
        left = max(0.0, min(part.deadline for part in parts) - time.monotonic())
        if left < _UNTOUCHED * terms.timeout:  # else they stay equal to others', which travel together
            terms = replace(terms, timeout=left)
        messages = [message for part in parts for message in part.messages]
        try:
            made = await self._store(messages, _as_one([part.encoded for part in parts]), terms)
        except InvalidInput as error:
            if len(parts) > 1:  # one caller's fault is not the others'
                for part in parts:
                    await self._send([part])
                return
            parts[0].outcomes.set_exception(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what became of all of them
            for part in parts:
                part.outcomes.set_exception(error)
        except BaseException:
            for part in parts:
                part.outcomes.cancel()
            raise
        else:
            _share(cache(made), parts)


def _joined(line: deque[_Part], most_bytes: int) -> list[_Part]:
    """The first of a line and who goes along: on the same terms, and each with half of any other's time at least, since
    all of them have the time of who has least.
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


def _share(made: MakeOutcomes, parts: Sequence[_Part]) -> None:
    first = 0
    for part in parts:
        mine = slice(first, first + len(part.messages))
        first = mine.stop

        def outcomes(mine: slice = mine) -> Sequence[Outcome]:
            return made()[mine]

        part.outcomes.set_result(made if len(parts) == 1 else outcomes)
