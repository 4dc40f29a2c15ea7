"""Record the deliveries to a group's members during kills, and find the cause of each duplicate."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from raymq.client import MessageQueue
from tests.chaos.traffic import Account
from tests.member_process import Delivered

#: How long a queue may have two owners after a change of members or brokers: the rest of the old owner's fetch, the 2 s
#: for which a vanished member or broker still counts, and the 5 s of a rebalance.
CHANGE_SECONDS = 15.0
#: How long a send or send-back that a dead broker left unanswered is repeated.
RESEND_SECONDS = 15.0
#: A member's output is read shortly after it was written.
_SLACK_SECONDS = 1.0

UNCOMMITTED = "done, and not committed when its member was killed"
TWO_OWNERS = "given to the next owner while its queue changed hands"
BROKER_LOST = "given again by a broker that was killed before it knew, {} its member of before"
SENT_TWICE = "sent again by its producer: a dead broker left the answer open"
RETURNED_TWICE = "given back twice: a dead broker left the answer open"
FAILED_TWICE = "came back twice, because its failure was "


@dataclass(slots=True)
class History:
    """The deliveries. Thread-safe. The account's `taken` counts successes, its `failed_once` failures.

    `committed` returns a queue's last offset before a time; None if unknown.
    """

    account: Account
    committed: Callable[[MessageQueue, float], int | None] = lambda _queue, _at: None
    _deliveries: list[Delivered] = field(default_factory=list)
    #: The kill times of brokers and members, and the times when members or brokers came or went.
    _brokers_killed: list[tuple[float, str]] = field(default_factory=list)
    _members_killed: dict[int, float] = field(default_factory=dict)
    _changes: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def told(self, delivered: Delivered) -> None:
        """Record a delivery to a member."""
        with self._lock:
            self._deliveries.append(delivered)
            (self.account.taken if delivered.success else self.account.failed_once)[delivered.number] += 1

    def broker_killed(self, name: str) -> None:
        """Record a kill of a broker."""
        with self._lock:
            self._brokers_killed.append((time.monotonic(), name))
            self._changes.append(time.monotonic())

    def member_killed(self, pid: int) -> None:
        """Record a kill of a member."""
        with self._lock:
            self._members_killed[pid] = time.monotonic()
            self._changes.append(time.monotonic())

    def changed(self) -> None:
        """Record that a member or a broker came, or left in order."""
        with self._lock:
            self._changes.append(time.monotonic())

    def duplicates(self) -> tuple[Counter[str], list[str]]:
        """Return each success after a message's first by its cause, and the stories of unexplained ones."""
        stories: dict[int, list[Delivered]] = defaultdict(list)
        for delivered in sorted(self._deliveries, key=lambda each: each.at):
            stories[delivered.number].append(delivered)
        causes: Counter[str] = Counter()
        unexplained = []
        for story in stories.values():
            successes = [each for each in story if each.success]
            for position, again in enumerate(successes[1:], 1):
                cause = self._cause(story, successes[:position], again)
                if cause is None:
                    unexplained.append(self._told(story))
                else:
                    causes[cause] += 1
        return causes, unexplained

    def taken_over(self, member: int, since: float) -> float | None:
        """Return the seconds from `since` until others had messages of all of a member's queues; None if not yet."""
        with self._lock:
            deliveries = list(self._deliveries)
        latest = {each.queue: each.member for each in deliveries if each.at <= since}
        left = {queue for queue, owner in latest.items() if owner == member}
        for each in deliveries:
            if each.at > since and each.member != member:
                left.discard(each.queue)
                if not left:
                    return each.at - since
        return None

    def _told(self, story: list[Delivered]) -> str:
        """Return a message's deliveries and all kills as text."""
        kills = [*self._brokers_killed, *((at, f"member {pid}") for pid, at in self._members_killed.items())]
        events = [(at, f"{what} killed") for at, what in kills] + [(each.at, str(each)) for each in story]
        return "\n".join(f"{at:.2f} {what}" for at, what in sorted(events))

    # -- causes ---------------------------------------------------------------------------------------------------

    def _cause(self, story: list[Delivered], before: list[Delivered], again: Delivered) -> str | None:
        same = [each for each in before if each.place == again.place]
        if same:
            return self._given_again(same[-1], again)
        if not again.reconsume_times:
            return self._sent_twice(again.number)
        first, *failures = [each for each in story if not each.success] or [None]
        if first is None:
            return None
        if not failures:
            return RETURNED_TWICE if self._broker_died(first.queue.broker, first.at, RESEND_SECONDS) else None
        same = [each for each in failures if each.place == first.place]
        why = self._given_again(first, same[0]) if same else self._sent_twice(again.number)
        return None if why is None else FAILED_TWICE + why

    def _given_again(self, before: Delivered, again: Delivered) -> str | None:
        """Return why the same copy was delivered twice."""
        killed_at = self._members_killed.get(before.member)
        moved = before.member != again.member
        if moved and killed_at is not None and killed_at <= again.at + _SLACK_SECONDS:
            committed = self.committed(before.queue, killed_at)
            if committed is None or committed <= before.offset:
                return UNCOMMITTED
        if self._broker_died(before.queue.broker, before.at - _SLACK_SECONDS, again.at - before.at + _SLACK_SECONDS):
            return BROKER_LOST.format("not to" if moved else "to")
        if moved and any(0 <= again.at - at <= CHANGE_SECONDS for at in self._changes):
            return TWO_OWNERS
        return None

    def _sent_twice(self, number: int) -> str | None:
        """Return why there are two copies of a message that a producer sent once."""
        begun, ended = self.account.sent[number]
        died = any(begun - RESEND_SECONDS <= at <= ended for at, _ in self._brokers_killed)
        return SENT_TWICE if died else None

    def _broker_died(self, broker: str, since: float, seconds: float) -> bool:
        """Check whether a broker was killed then, or shortly before, so that it was down."""
        return any(
            name == broker and since - RESEND_SECONDS <= at <= since + seconds for at, name in self._brokers_killed
        )
