"""What the members of a group were given while things were killed, and where each duplicate comes from."""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.chaos.traffic import Account
from tests.member_process import Delivered

#: How long after a kill it may be the cause of a duplicate: a broker's restart, the members' share-out, a retry's wait.
EFFECT_SECONDS = 30.0


@dataclass(slots=True)
class History:
    """Thread-safe. `taken` of the account counts successes, `failed_once` failures."""

    account: Account
    _deliveries: list[Delivered] = field(default_factory=list)
    _kills: list[tuple[float, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def told(self, delivered: Delivered) -> None:
        """A member was given a message."""
        with self._lock:
            self._deliveries.append(delivered)
            (self.account.taken if delivered.success else self.account.failed_once)[delivered.number] += 1

    def killed(self, what: str) -> None:
        """Something was killed just now."""
        with self._lock:
            self._kills.append((time.monotonic(), what))

    def duplicates(self) -> Counter[str]:
        """Every success beyond a message's first, by its kind and what was killed before it.

        "stored twice": another copy of the message, which its producer or a member that gave it back sent again because
        an answer was missing. "delivered twice": the same copy, taken before its success was committed.
        """
        successes: dict[int, list[Delivered]] = defaultdict(list)
        for delivered in sorted(self._deliveries, key=lambda each: each.at):
            if delivered.success:
                successes[delivered.number].append(delivered)
        found: Counter[str] = Counter()
        for first, *others in successes.values():
            places = {first.place}
            for other in others:
                kind = "delivered twice" if other.place in places else "stored twice"
                places.add(other.place)
                found[f"{kind} after {self._cause(other.at)}"] += 1
        return found

    def taken_over(self, member: int, since: float) -> float | None:
        """Seconds from `since` until others had messages of each of a member's queues; None if not all have yet."""
        with self._lock:
            deliveries = list(self._deliveries)
        latest = {each.place[:2]: each.member for each in deliveries if each.at <= since}
        left = {queue for queue, owner in latest.items() if owner == member}
        for each in deliveries:
            if each.at > since and each.member != member:
                left.discard(each.place[:2])
                if not left:
                    return each.at - since
        return None

    def _cause(self, at: float) -> str:
        number = bisect(self._kills, (at, "")) - 1
        if number < 0 or at - self._kills[number][0] > EFFECT_SECONDS:
            return "nothing"
        return f"a kill of a {self._kills[number][1]}"
