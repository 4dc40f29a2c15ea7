"""Leases: how long a master may acknowledge before it has to renew.

The module has the keeper's side and the master's side. Neither side writes a lease to disk.

A keeper gives the master of a group a lease of one TTL, counted from its answer, and accepts no change that replaces
the master before the lease has ended. A master counts from *before* its request and uses four fifths of the lease, so
that the lease ends on its side before it ends at the keepers, whatever the latency and the clock drift. The clock also
counts while a machine sleeps (`storage.clock.boottime`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import LeaseClaim
from raymq.actors.keeper.keeper_set import KeeperSet

LEASE_SECONDS: Final = 2.0
RENEWAL_SECONDS: Final = 0.5
#: The share of a lease that a master uses; the rest allows for clock drift.
USED_SHARE: Final = 0.8


def claim_of(value: GroupState | KeeperSet | None) -> LeaseClaim | None:
    """Return the claim to the lease of a group in this state.

    Return None if the group has no master, or if the value is not a group's state.
    """
    if not isinstance(value, GroupState) or value.master is None:
        return None
    return LeaseClaim(value.master, value.replicas[value.master].nonce, value.epoch)


class KeeperLeases:
    """The leases that one keeper has given. Used by one thread."""

    def __init__(self, clock: Callable[[], float], seconds: float = LEASE_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._given: dict[str, tuple[LeaseClaim, float]] = {}
        self._quiet_until = 0.0

    def start_quiet_period(self) -> None:
        """Treat all groups as leased for one TTL from now.

        The keeper may have given leases before its restart that it no longer knows.
        """
        self._quiet_until = self._clock() + self._seconds

    def give(self, key: str, claim: LeaseClaim) -> float:
        """Give the lease, and return its length in seconds.

        The caller has checked with `held_against` that no other replica has it.
        """
        self._given[key] = claim, self._clock() + self._seconds
        return self._seconds

    def end(self, key: str, claim: LeaseClaim) -> None:
        """End the lease that its holder returns."""
        if (lease := self._given.get(key)) is not None and lease[0] == claim:
            del self._given[key]

    def held_against(self, key: str, claim: LeaseClaim | None) -> float:
        """Return for how many seconds a replica other than `claim` may hold the lease.

        Return 0 if no other replica holds it.
        """
        lease = self._given.get(key)
        if lease is None or lease[0] == claim:
            return 0.0
        remaining = lease[1] - self._clock()
        if remaining <= 0:
            del self._given[key]
        return max(remaining, 0.0)

    @property
    def quiet_seconds(self) -> float:
        """Return for how many seconds the quiet period lasts.

        Until then this keeper accepts no change of a master, because it cannot know which leases were given.
        """
        return max(self._quiet_until - self._clock(), 0.0)


class MasterLease:
    """A master's own view of its lease.

    Any thread may read `holds`. The rest is used on the broker's event loop.
    """

    def __init__(self, clock: Callable[[], float], *, used_share: float = USED_SHARE) -> None:
        """Start without a lease.

        `clock` returns seconds, and goes on while the machine sleeps (`storage.clock.boottime`).
        """
        self._clock = clock
        self._used_share = used_share
        self._until: float | None = None
        self._next_renewal = 0.0

    @property
    def holds(self) -> bool:
        """Return True if no other replica can be master now.

        Check it after the last await, right before an acknowledgement.
        """
        return self._until is not None and self._clock() < self._until

    @property
    def left_seconds(self) -> float:
        """Return for how many seconds the lease still holds."""
        return 0.0 if self._until is None else max(self._until - self._clock(), 0.0)

    @property
    def is_due(self) -> bool:
        """Return True if it is time to renew the lease."""
        return self._clock() >= self._next_renewal

    def ask(self) -> float:
        """Return the current time, to be passed to `given`.

        Call it before the request to the keepers. It also schedules the next renewal.
        """
        began = self._clock()
        self._next_renewal = began + RENEWAL_SECONDS
        return began

    def given(self, began: float, seconds: float) -> None:
        """Extend the lease by `seconds` from `began`, which a majority has granted.

        `began` is the result of `ask` before the request.
        """
        until = began + seconds * self._used_share
        self._until = until if self._until is None else max(self._until, until)

    def revoke(self) -> None:
        """End the lease on this side, whether or not the keepers still count it."""
        self._until = None
