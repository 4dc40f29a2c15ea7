"""Decide which leased messages are called with next, and which leases to renew.

No I/O, injected clock. A message is ahead from `add` until `next_call`, and running until `ended`. At most one call
with the same message runs. If a message is delivered again because its lease was lost while its call goes on, it waits
for the end of that call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.protocol import MessageQueue
from raymq.client.message import ReceivedMessage

#: A consumer's first calls begin one at a time, unless the last one has run for this long. Its process may have been
#: restarted because its listener crashed it.
LAUNCH_GUARD_SECONDS: Final = 0.02
FIRST_CALLS: Final = 100

#: A message's queue and its offset in the queue.
QueuePosition = tuple[MessageQueue, int]


@dataclass(eq=False, slots=True)
class MessageLease:
    """One leased message. Times are seconds of the clock.

    Attributes:
        renew_at: when its lease should be renewed.
        ends_at: when its lease ends, unless it is renewed.
        since: when the message arrived or was made ready again.
        is_suspect: whether the message is called with alone, because its last consumer ended without a result.
        is_begun: whether the broker has been informed that a call begins with it.
        is_renewing: whether a request that renews its lease is in flight.
    """

    message: ReceivedMessage
    renew_at: float
    ends_at: float
    since: float
    is_suspect: bool = False
    is_begun: bool = False
    is_renewing: bool = False
    #: The identity of the message, the same in all its deliveries.
    place: QueuePosition = field(init=False)

    def __post_init__(self) -> None:
        self.place = self.message.queue, self.message.queue_offset


@dataclass(eq=False, slots=True)
class LeasedCall:
    """A call of the listener, from its announcement to the confirmation of its outcomes.

    The brokers receive the announcement and confirm the outcomes.

    Attributes:
        leases: the messages whose outcome is not known yet.
        begun_at: when the call began; None: the broker has not responded yet.
        is_ending: whether the listener has returned a result for all messages.
        unsettled: how many of the outcomes the broker has not confirmed.
    """

    broker: str
    leases: dict[QueuePosition, MessageLease]
    is_suspect: bool
    begun_at: float | None = None
    is_ending: bool = False
    unsettled: int = 0


@dataclass(slots=True)
class MessageLeases:
    """The leases of one consumer.

    Args:
        threads, batch_size: how many calls run at a time, with how many messages of one queue.
        lease_seconds: how long each lease lasts.
        first_calls: how many of the first calls begin one at a time, unless the last one has run for a while.
    """

    clock: Callable[[], float]
    threads: int
    batch_size: int
    lease_seconds: float
    first_calls: int = FIRST_CALLS
    ahead: dict[QueuePosition, MessageLease] = field(default_factory=dict)
    _suspects: dict[QueuePosition, MessageLease] = field(default_factory=dict)
    calls: set[LeasedCall] = field(default_factory=set)

    def add(self, message: ReceivedMessage, renew_at: float) -> MessageLease:
        """Add a leased message. `renew_at` is when half of its lease has passed."""
        receipt = message.receipt
        is_suspect = receipt is not None and receipt.is_suspect
        ends_at = renew_at + self.lease_seconds / 2
        is_begun = receipt is not None and receipt.is_begun
        lease = MessageLease(message, renew_at, ends_at, self.clock(), is_suspect, is_begun)
        self._without([lease])
        self.ahead[lease.place] = lease
        if is_suspect:
            self._suspects[lease.place] = lease
        return lease

    @property
    def free(self) -> int:
        """Return how many calls may begin in addition to the running ones.

        Return 0 while a suspect message runs, or waits to run alone.
        """
        if self._suspects or any(call.is_suspect for call in self.calls):
            return 0
        return max(0, self.threads - sum(not call.is_ending for call in self.calls))

    @property
    def waiting(self) -> int:
        """Return how many messages wait for a free thread.

        Redelivered messages are not counted while their earlier call runs.
        """
        return len(self.ahead) - sum(place in self.ahead for call in self.calls for place in call.leases)

    def next_call(self) -> LeasedCall | None:
        """Return the call to begin now, or None if there is none."""
        if not self.ahead or any(call.is_suspect for call in self.calls):
            return None
        if self._suspects:
            return None if self.calls else self._begin([next(iter(self._suspects.values()))])
        busy = [call for call in self.calls if not call.is_ending]
        if len(busy) >= self.threads or self.young_until() is not None:
            return None
        running = {place for call in self.calls for place in call.leases}
        first = next((lease for lease in self.ahead.values() if lease.place not in running), None)
        if first is None:
            return None
        queue = first.message.queue
        # One request can report to a broker that a call has ended and that the next one begins. Without such a request
        # the outcome must be confirmed before the thread goes on.
        unknown = sum(call.is_ending and (first.is_begun or call.broker != queue.broker) for call in self.calls)
        if unknown and (self.first_calls or len(busy) + unknown >= self.threads):
            return None
        batch: list[MessageLease] = []
        for lease in self.ahead.values():
            if lease.message.queue == queue and lease.place not in running:
                batch.append(lease)
                if len(batch) == self.batch_size:
                    break
        return self._begin(batch)

    def young_until(self) -> float | None:
        """Return until when no call may begin beside the last one.

        Return None if a call may begin now.
        """
        if not self.first_calls:
            return None
        now = self.clock()
        begun = [now if call.begun_at is None else call.begun_at for call in self.calls if not call.is_ending]
        latest = max(begun, default=None)
        return None if latest is None or now - latest >= LAUNCH_GUARD_SECONDS else latest + LAUNCH_GUARD_SECONDS

    def running(self, place: QueuePosition) -> tuple[LeasedCall, MessageLease] | None:
        """Return the call that runs with a message, and its lease, or None."""
        for call in self.calls:
            lease = call.leases.get(place)
            if lease is not None:
                return call, lease
        return None

    def ended(self, call: LeasedCall, place: QueuePosition) -> None:
        """Remove a message from a call, after its result or the loss of its lease."""
        call.leases.pop(place, None)
        call.is_ending = not call.leases

    def take_unstarted(self, waiting_since: float | None = None) -> list[MessageLease]:
        """Remove and return the messages with which no call has begun.

        Args:
            waiting_since: if given, only messages that have waited since then, except for the next suspect.
        """
        next_suspect = next(iter(self._suspects.values()), None)
        taken = [
            lease
            for lease in self.ahead.values()
            if waiting_since is None or (lease.since <= waiting_since and lease is not next_suspect)
        ]
        self._without(taken)
        return taken

    def take_redelivered(self, place: QueuePosition) -> list[MessageLease]:
        """Remove and return a message that was delivered again while its call ran."""
        taken = [self.ahead[place]] if place in self.ahead else []
        self._without(taken)
        return taken

    def drop(self, lease: MessageLease) -> None:
        """Remove a message with which no call has begun."""
        if self.ahead.get(lease.place) is lease:
            self._without([lease])

    def due(self) -> tuple[list[MessageLease], list[MessageLease]]:
        """Return the leases to renew, of waiting messages and of running calls.

        If one is due, leases that will be due soon are included, so that few requests renew them all.
        """
        now = self.clock()
        running = [lease for call in self.calls for lease in call.leases.values()]
        if all(lease.renew_at > now for lease in (*self.ahead.values(), *running)):
            return [], []
        soon = now + self.lease_seconds / 4

        def chosen(leases: Iterable[MessageLease]) -> list[MessageLease]:
            return [
                lease for lease in leases if lease.renew_at <= soon and now < lease.ends_at and not lease.is_renewing
            ]

        return chosen(self.ahead.values()), chosen(running)

    def renewed(self, lease: MessageLease, asked_at: float) -> None:
        """Record that a request sent at `asked_at` has renewed a lease."""
        lease.renew_at = asked_at + self.lease_seconds / 2
        lease.ends_at = asked_at + self.lease_seconds

    def over(self) -> list[MessageLease]:
        """Return the expired leases. Those with which no call has begun are removed."""
        now = self.clock()
        ended = [lease for lease in self.ahead.values() if lease.ends_at <= now]
        self._without(ended)
        running = [lease for call in self.calls for lease in call.leases.values() if lease.ends_at <= now]
        return [*ended, *running]

    def _begin(self, batch: list[MessageLease]) -> LeasedCall:
        self._without(batch)
        broker = batch[0].message.queue.broker
        call = LeasedCall(broker, {lease.place: lease for lease in batch}, batch[0].is_suspect)
        self.calls.add(call)
        self.first_calls -= self.first_calls > 0
        return call

    def _without(self, removed: list[MessageLease]) -> None:
        for lease in removed:
            self.ahead.pop(lease.place, None)
            self._suspects.pop(lease.place, None)
