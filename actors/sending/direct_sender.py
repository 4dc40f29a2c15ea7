"""Make the first try of a send in the calling thread.

All further tries are made by the `Sender` on the event loop. If the route is known and the broker connected, the thread
waits only for the answer, and a blocking socket does that at half the cost. A large part goes from its buffer into the
socket without the event loop and its thread. The same `Sender` and `SendPlan` as on the loop choose the queue, number
an idempotent send, interpret the answer and decide what follows a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.route_cache import RouteCache
from raymq.actors.sending.body_size import ALWAYS_READABLE_BYTES, body_limit, longest_body
from raymq.actors.sending.partition_sequence import HeldSequence
from raymq.actors.sending.send_plan import SendParameters, try_seconds
from raymq.actors.sending.sender import (
    BatchSend,
    FailedAttempt,
    Sender,
    SendOutcome,
    SingleSendOutcome,
    Sizes,
    write_queue_id,
)
from raymq.actors.wire.blocking_channel import SMALL_BYTES, BlockingChannel, BlockingChannelPool
from raymq.actors.wire.codes import RequestCode
from raymq.storage.records.producer_sequence import stamp_first

#: Looked up once: in Python 3.11 an enum's member costs a tenth of a microsecond.
_APPEND_ONE: Final = RequestCode.APPEND_ONE


@dataclass(slots=True)
class PendingSend:
    """A send that `DirectSender.begin` has begun.

    Attributes:
        queue: the queue of the first try, if one was made.
        channel: the channel on which the answer of the first try arrives; None if the try failed or was not made.
        tried: the failure of the first try.
    """

    batch: BatchSend
    queue: MessageQueue | None = None
    channel: BlockingChannel | None = None
    tried: FailedAttempt | None = None


class DirectSender:
    """A sender whose first try blocks the calling thread. Thread-safe.

    `run` runs a coroutine on the event loop of `sender` and waits for it.
    """

    def __init__(
        self,
        sender: Sender,
        routes: RouteCache,
        channels: BlockingChannelPool,
        run: Callable[[Coroutine[Any, Any, SendOutcome]], SendOutcome],
    ) -> None:
        self._sender = sender
        self._counts = sender.counts
        self._routes = routes
        self._channels = channels
        self._run = run

    def send(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> SendOutcome:
        """Send records, as `Sender.send`.

        It blocks, and must not be called on the event loop.
        """
        return self.finish(self.begin(topic, records, sizes, terms))

    def send_one(self, topic: str, record: bytearray, terms: SendParameters) -> SingleSendOutcome:
        """Send one record that is not delayed."""
        if len(record) > SMALL_BYTES:
            return self.send(topic, record, sizes_of_one(record), terms).one()
        began = time.monotonic()
        tried: FailedAttempt | None = None
        held: HeldSequence | None = None
        ready = self._sender.ready(topic, terms)
        if ready is not None:
            queue, address, held = ready
            try:
                code = _APPEND_ONE
                if held is not None:
                    stamp_first(record, held.count.sequence(1))
                    code = RequestCode.APPEND_ONE_SEQUENCED
                write_queue_id(record, queue.queue_id)
                answer = self._channels.ask(address, code, record, first_try_timeout(terms))
                if answer is not None:
                    elapsed = time.monotonic() - began
                    sent = self._sender.read_single_answer(queue, address, answer, elapsed)
                    if held is not None:
                        held.stored(1)
                    if self._counts is not None:
                        self._counts.stored(topic, 1, elapsed)
                    return sent
            except RayMQError as error:
                tried = FailedAttempt(queue, error, time.monotonic() - began)
            except BaseException:
                if held is not None:
                    held.end()
                raise
        batch = BatchSend(topic, record, sizes_of_one(record), terms, terms.plan(began), held, began=began)
        return self._run(self._sender.resume(batch, tried)).one()

    def begin(self, topic: str, records: bytearray, sizes: Sizes, terms: SendParameters) -> PendingSend:
        """Write the first try; the caller passes the result to `finish`.

        It raises none of the errors of a send; `finish` raises them. Several sends may be pending at once, and sends to
        one queue may then be stored in another order. All tries of an idempotent send are made by `finish`.
        """
        began = time.monotonic()
        begun = PendingSend(BatchSend(topic, records, sizes, terms, terms.plan(began), began=began))
        ready = None if terms.idempotent else self._sender.ready(topic, terms)
        if ready is None:
            return begun
        queue, address, _ = ready
        if len(records) > ALWAYS_READABLE_BYTES and longest_body(records, sizes) > body_limit(
            self._routes.known(topic), queue.broker
        ):
            return begun  # a fresh route may have another limit
        begun.queue = queue
        command = self._sender.build_append(queue, records, sizes, terms)
        try:
            begun.channel = self._channels.begin(address, command, first_try_timeout(terms))
        except RayMQError as error:
            begun.tried = FailedAttempt(queue, error, time.monotonic() - began)
        return begun

    def finish(self, begun: PendingSend) -> SendOutcome:
        """Return the outcome of a send that was begun; raise as `Sender.send`."""
        batch, queue, channel = begun.batch, begun.queue, begun.channel
        if queue is not None and channel is not None:
            try:
                left = batch.began + first_try_timeout(batch.terms) - time.monotonic()
                answer = self._channels.finish(channel, left)
                elapsed = time.monotonic() - batch.began
                sent = self._sender.answered(queue, channel.address, answer, len(batch.sizes), elapsed)
            except RayMQError as error:
                begun.tried = FailedAttempt(queue, error, time.monotonic() - batch.began)
            else:
                if self._counts is not None:
                    self._counts.stored(batch.topic, len(batch.sizes), elapsed)
                return sent
        return self._run(self._sender.resume(batch, begun.tried))


def sizes_of_one(record: bytearray) -> Sizes:
    """Return the sizes of a single record."""
    return np.array((len(record),), np.int32)


def first_try_timeout(terms: SendParameters) -> float:
    """Return the seconds of the budget for the first try, as `SendPlan.try_timeout`."""
    return try_seconds(terms.timeout, 1 + terms.retries)
