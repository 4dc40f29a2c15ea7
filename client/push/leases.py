"""Which lent messages may be called with next, and which leases are to be renewed. No I/O, injected clock.

A message is ahead from `add` until `next_call`, and running until `ended`. At most one call with the same message runs:
a message that comes again, because its lease was lost while its call runs on, waits for the end of that call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.protocol import MessageQueue
from raymq.client.message import ReceivedMessage

#: The first calls of a consumer begin one at a time, unless the last one has run for so long: its process may have been
#: started anew because its listener killed it.
YOUNG_SECONDS: Final = 0.02
FIRST_CALLS: Final = 100

#: A message's queue and its offset there.
Place = tuple[MessageQueue, int]


@dataclass(eq=False, slots=True)
class MessageLease:
    """One lent message. Times are seconds of the clock.

    Attributes:
        renew_at: when its lease should be made longer.
        ends_at: when it is over, unless it was made longer.
        since: when the message came, or was made ready again.
        is_suspect: it is called with alone, since its consumer ended without an answer before.
        is_begun: the broker knows that a call begins with it.
        is_renewing: a request that makes its lease longer is under way.
    """

    message: ReceivedMessage
    renew_at: float
    ends_at: float
    since: float
    is_suspect: bool = False
    is_begun: bool = False
    is_renewing: bool = False
    #: What is the same in all deliveries of the message.
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        self.place = self.message.queue, self.message.queue_offset


@dataclass(eq=False, slots=True)
class LentCall:
    """A call of the listener, from the request that says so to the brokers' answers to its outcomes.

    Attributes:
        leases: its messages whose outcome is not known yet.
        begun_at: when it began; None: the broker has not answered yet.
        is_ending: the listener has answered for all messages.
        unsettled: how many of its outcomes the broker has not confirmed.
    """

    broker: str
    leases: dict[Place, MessageLease]
    is_suspect: bool
    begun_at: float | None = None
    is_ending: bool = False
    unsettled: int = 0


@dataclass(slots=True)
class Leases:
    """The leases of one consumer.

    Args:
        threads, batch_size: how many calls run at a time, with how many messages of one queue.
        lease_seconds: how long each lease lasts.
        first_calls: during so many calls one begins at a time, unless the last one has run for a while.
    """

    clock: Callable[[], float]
    threads: int
    batch_size: int
    lease_seconds: float
    first_calls: int = FIRST_CALLS
    ahead: dict[Place, MessageLease] = field(default_factory=dict)
    _suspects: dict[Place, MessageLease] = field(default_factory=dict)
    calls: set[LentCall] = field(default_factory=set)

    def add(self, message: ReceivedMessage, renew_at: float) -> MessageLease:
        """A message was lent; `renew_at` is when half of its lease is over."""
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
        """How many calls may begin beside those that run; 0 while a suspect runs, or waits to run alone."""
        if self._suspects or any(call.is_suspect for call in self.calls):
            return 0
        return max(0, self.threads - sum(not call.is_ending for call in self.calls))

    @property
    def waiting(self) -> int:
        """How many messages wait for a free thread; those that came again wait for the end of their own call."""
        return len(self.ahead) - sum(place in self.ahead for call in self.calls for place in call.leases)

    def next_call(self) -> LentCall | None:
        """The call to begin now; None if there is none."""
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
        # A broker learns in one request that a call has ended and that the next one begins. Where there is no such
        # request the outcome has to be known before the thread goes on.
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
        """Until when no other call may begin beside the last one; None: it may now."""
        if not self.first_calls:
            return None
        now = self.clock()
        begun = [now if call.begun_at is None else call.begun_at for call in self.calls if not call.is_ending]
        latest = max(begun, default=None)
        return None if latest is None or now - latest >= YOUNG_SECONDS else latest + YOUNG_SECONDS

    def running(self, place: Place) -> tuple[LentCall, MessageLease] | None:
        """The call that runs with a message."""
        for call in self.calls:
            lease = call.leases.get(place)
            if lease is not None:
                return call, lease
        return None

    def ended(self, call: LentCall, place: Place) -> None:
        """The listener has answered for a message, or the message is not this consumer's any more."""
        call.leases.pop(place, None)
        call.is_ending = not call.leases

    def take_ahead(self, waiting_since: float | None = None) -> list[MessageLease]:
        """Take out what no call has begun with; of a time, what has waited since then, but for the next suspect."""
        next_suspect = next(iter(self._suspects.values()), None)
        taken = [
            lease
            for lease in self.ahead.values()
            if waiting_since is None or (lease.since <= waiting_since and lease is not next_suspect)
        ]
        self._without(taken)
        return taken

    def take_same(self, place: Place) -> list[MessageLease]:
        """Take out what came again of a message while a call with it ran."""
        taken = [self.ahead[place]] if place in self.ahead else []
        self._without(taken)
        return taken

    def drop(self, lease: MessageLease) -> None:
        """Take out one that no call has begun with."""
        if self.ahead.get(lease.place) is lease:
            self._without([lease])

    def due(self) -> tuple[list[MessageLease], list[MessageLease]]:
        """The leases to be renewed: those that no call has begun with, and those of calls.

        With one that is due come those that soon are, so that few requests renew them all.
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
        """A lease was made longer by a request of that time."""
        lease.renew_at = asked_at + self.lease_seconds / 2
        lease.ends_at = asked_at + self.lease_seconds

    def over(self) -> list[MessageLease]:
        """The leases whose time is over; those that no call has begun with are taken out."""
        now = self.clock()
        ended = [lease for lease in self.ahead.values() if lease.ends_at <= now]
        self._without(ended)
        running = [lease for call in self.calls for lease in call.leases.values() if lease.ends_at <= now]
        return [*ended, *running]

    def _begin(self, batch: list[MessageLease]) -> LentCall:
        self._without(batch)
        broker = batch[0].message.queue.broker
        call = LentCall(broker, {lease.place: lease for lease in batch}, batch[0].is_suspect)
        self.calls.add(call)
        self.first_calls -= self.first_calls > 0
        return call

    def _without(self, gone: list[MessageLease]) -> None:
        for lease in gone:
            self.ahead.pop(lease.place, None)
            self._suspects.pop(lease.place, None)
