"""Leases: for how long a master may acknowledge without asking again. Both ends; neither is ever written to disk.

A keeper gives the master of a group a lease of one TTL, counted from its answer, and lets nobody take the master away
before that has passed. A master counts from *before* it asked and uses four fifths, so that its lease is over before
the keepers' is, whatever the way took and however their clocks run; the clock counts also while a machine sleeps
(`storage.clock.boottime`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.messages import LeaseClaim

LEASE_SECONDS: Final = 2.0
RENEWAL_SECONDS: Final = 0.5
#: What a master uses of a lease; the rest is for clocks that run differently.
USED_SHARE: Final = 0.8


def claim_of(value: GroupState | KeeperSet | None) -> LeaseClaim | None:
    """Who may have the lease of a group of this state; None if it has no master."""
    if not isinstance(value, GroupState) or value.master is None:
        return None
    return LeaseClaim(value.master, value.replicas[value.master].nonce, value.epoch)


class KeeperLeases:
    """The leases that one keeper has given. One thread."""

    def __init__(self, clock: Callable[[], float], seconds: float = LEASE_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._given: dict[str, tuple[LeaseClaim, float]] = {}
        self._quiet_until = 0.0

    def be_quiet(self) -> None:
        """For one TTL from now all groups count as held: leases may be out that this keeper does not know of."""
        self._quiet_until = self._clock() + self._seconds

    def give(self, key: str, claim: LeaseClaim) -> float:
        """Give the lease, which nobody else has (`held_against`); its seconds."""
        self._given[key] = claim, self._clock() + self._seconds
        return self._seconds

    def end(self, key: str, claim: LeaseClaim) -> None:
        """The holder gives it back."""
        if (given := self._given.get(key)) is not None and given[0] == claim:
            del self._given[key]

    def held_against(self, key: str, claim: LeaseClaim | None) -> float:
        """For how many seconds somebody other than `claim` may hold the lease; 0: nobody does."""
        given = self._given.get(key)
        if given is None or given[0] == claim:
            return 0.0
        left = given[1] - self._clock()
        if left <= 0:
            del self._given[key]
        return max(left, 0.0)

    @property
    def quiet_seconds(self) -> float:
        """How long this keeper lets nobody change a master, because it cannot know who has a lease."""
        return max(self._quiet_until - self._clock(), 0.0)


class MasterLease:
    """A master's own view of its lease. Any thread may ask `holds`; the rest belongs to the broker's loop."""

    def __init__(self, clock: Callable[[], float], *, used_share: float = USED_SHARE) -> None:
        """`clock`: seconds that go on while the machine sleeps (`storage.clock.boottime`)."""
        self._clock = clock
        self._used_share = used_share
        self._until: float | None = None
        self._next_renewal = 0.0

    @property
    def holds(self) -> bool:
        """Whether nobody else can be master now. Ask after the last await, right before an acknowledgement."""
        return self._until is not None and self._clock() < self._until

    @property
    def left_seconds(self) -> float:
        """For how long it holds."""
        return 0.0 if self._until is None else max(self._until - self._clock(), 0.0)

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return self._clock() >= self._next_renewal

    def ask(self) -> float:
        """Call it before the keepers are asked; what it returns goes to `given`."""
        began = self._clock()
        self._next_renewal = began + RENEWAL_SECONDS
        return began

    def given(self, began: float, seconds: float) -> None:
        """A majority of the keepers gave `seconds` to who asked at `began`."""
        until = began + seconds * self._used_share
        self._until = until if self._until is None else max(self._until, until)

    def give_up(self) -> None:
        """It holds no longer, whatever the keepers think."""
        self._until = None
