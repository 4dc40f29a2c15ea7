"""The quick way for a producer that numbers what it sends: `DirectSender`'s, with a queue's turn held meanwhile.

It is taken where the queue's turn is free; whoever would have to wait for it does so on the loop. What a number means,
and what becomes of one whose record may be stored, is decided by the same `SequenceLane` and `IdempotentSender`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from raymq.actors.errors import RayMQError
from raymq.actors.sending.direct import DirectSender, first_share, size_of
from raymq.actors.sending.idempotent import HeldLane, IdempotentSender
from raymq.actors.sending.sender import Sent, SentOne, Sizes, Terms, Tried, address_one
from raymq.actors.wire.channel import SMALL_BYTES, ChannelPool
from raymq.actors.wire.codes import RequestCode
from raymq.storage.records.producer_sequence import stamp_first

#: So many queues are looked at for one whose turn is free; those that are fixed are asked for again in vain.
_PICKS: Final = 2


class DirectIdempotentSender:
    """Thread-safe. `run` runs a coroutine on the event loop of `sender` and waits for it."""

    def __init__(
        self,
        sender: IdempotentSender,
        direct: DirectSender,
        channels: ChannelPool,
        run: Callable[[Coroutine[Any, Any, Sent]], Sent],
    ) -> None:
        self._sender = sender
        self._direct = direct
        self._channels = channels
        self._run = run

    def send(self, topic: str, records: bytearray, sizes: Sizes, terms: Terms) -> Sent:
        """As `IdempotentSender.send`; blocks, and must not be called on the loop."""
        return self._run(self._sender.send(topic, records, sizes, terms))

    def send_one(self, topic: str, record: bytearray, terms: Terms) -> SentOne:
        """`send` of one record that is not delayed."""
        began = time.monotonic()
        free = self._free(topic, terms) if len(record) <= SMALL_BYTES else None
        if free is None:
            return self.send(topic, record, size_of(record), terms).one()
        lane, address = free
        queue = lane.count.queue
        try:
            stamp_first(record, lane.count.sequence(1))
            address_one(record, queue.queue_id)
            answer = self._channels.ask(address, RequestCode.APPEND_ONE_SEQUENCED, record, first_share(terms))
            if answer is not None:
                sent = self._sender.plain.answered_one(queue, address, answer, time.monotonic() - began)
                lane.stored(1)
                return sent
        except RayMQError as error:
            tried = Tried(queue, error, time.monotonic() - began)
        except BaseException:
            lane.end()
            raise
        else:  # there was no channel
            lane.unused()
            return self.send(topic, record, size_of(record), terms).one()
        plan = terms.plan(began, repeats_are_recognised=True)
        return self._run(self._sender.go_on(plan, tried, topic, record, size_of(record), terms, lane)).one()

    def _free(self, topic: str, terms: Terms) -> tuple[HeldLane, str] | None:
        """The lane of a queue whose turn is taken, and its broker's address; None: the send has to wait, or is the
        loop's.
        """
        for _ in range(_PICKS):
            chosen = self._direct.chosen(topic, terms)
            if chosen is None:
                return None
            lane = self._sender.lane(chosen[0])
            if lane.take():
                return lane, chosen[1]
        return None
