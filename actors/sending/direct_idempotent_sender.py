"""Send idempotently from the calling thread, while it holds the queue's mutex.

This path is taken if the queue's mutex is free; a send that would have to wait for it runs on the event loop.
`PartitionSequence` and `IdempotentSender` define the sequence numbers, and how a batch that may be stored is handled,
in the same way for both paths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from raymq.actors.errors import RayMQError
from raymq.actors.sending.direct_sender import DirectSender, first_try_timeout, sizes_of_one
from raymq.actors.sending.idempotent_sender import HeldSequence, IdempotentSender
from raymq.actors.sending.sender import (
    FailedAttempt,
    SendOutcome,
    SendParameters,
    SingleSendOutcome,
    Sizes,
    write_queue_id,
)
from raymq.actors.wire.blocking_channel import SMALL_BYTES, BlockingChannelPool
from raymq.actors.wire.codes import RequestCode
from raymq.storage.records.producer_sequence import stamp_first

#: The most queues that are tried for one with a free mutex. A fixed queue is just tried again.
_PICKS: Final = 2


class DirectIdempotentSender:
    """An idempotent sender whose first try blocks the calling thread. Thread-safe.

    `run` runs a coroutine on the event loop of `sender` and waits for it.
    """

    def __init__(
        self,
        sender: IdempotentSender,
        direct: DirectSender,
        channels: BlockingChannelPool,
        run: Callable[[Coroutine[Any, Any, SendOutcome]], SendOutcome],
    ) -> None:
        self._sender = sender
        self._direct = direct
        self._channels = channels
        self._run = run

    def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        """Send records, as `IdempotentSender.send`.

        It blocks, and must not be called on the event loop.
        """
        return self._run(self._sender.send(topic, records, sizes, terms))

    def send_one(self, topic: str, record: bytearray, terms: SendParameters) -> SingleSendOutcome:
        """Send one record that is not delayed."""
        began = time.monotonic()
        free = self._free(topic, terms) if len(record) <= SMALL_BYTES else None
        if free is None:
            return self.send(topic, record, sizes_of_one(record), terms).one()
        lane, address = free
        queue = lane.count.queue
        try:
            stamp_first(record, lane.count.sequence(1))
            write_queue_id(record, queue.queue_id)
            answer = self._channels.ask(address, RequestCode.APPEND_ONE_SEQUENCED, record, first_try_timeout(terms))
            if answer is not None:
                sent = self._sender.plain.read_single_answer(queue, address, answer, time.monotonic() - began)
                lane.stored(1)
                return sent
        except RayMQError as error:
            tried = FailedAttempt(queue, error, time.monotonic() - began)
        except BaseException:
            lane.end()
            raise
        else:  # no channel was available
            lane.unused()
            return self.send(topic, record, sizes_of_one(record), terms).one()
        plan = terms.plan(began, is_idempotent=True)
        return self._run(self._sender.resume(plan, tried, topic, record, sizes_of_one(record), terms, lane)).one()

    def _free(self, topic: str, terms: SendParameters) -> tuple[HeldSequence, str] | None:
        """Return the sequence of a queue whose mutex was taken, and its broker's address.

        Return None if the send has to wait for a mutex, or has to run on the event loop.
        """
        for _ in range(_PICKS):
            chosen = self._direct.chosen(topic, terms)
            if chosen is None:
                return None
            lane = self._sender.lane(chosen[0])
            if lane.take():
                return lane, chosen[1]
        return None
