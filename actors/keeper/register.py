"""The register: who is master of which group, decided by a majority. The seam, behind which keepers or etcd are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.messages import LeaseClaim, Registered


class Register(Protocol):
    """Values by group names, changed by compare-and-set, and a lease for each group's master.

    Calls are linearizable: each takes effect once, between its beginning and its end, or, where it ends with
    RegisterUnknown, at most once and perhaps later. Coroutines of one event loop; several may be under way.
    """

    async def read(self, group: str) -> Registered:
        """The value now; of version 0 and None if there is none.

        Raises:
            RegisterUnavailable: no majority could be asked.
        """

    async def settle(self, group: str) -> Registered:
        """The value, after which no change that ended with RegisterUnknown before can be made any more.

        A `read` does not promise that: it may answer with the former value, and the change be made afterwards.

        Raises:
            RegisterUnavailable: no majority could be asked.
        """

    async def change(self, group: str, before: Registered, after: GroupState) -> Registered:
        """Put `after` in the place of `before`, which was read; the new value with its version.

        A change that takes the master away, or another master's, or its process's, waits for the end of the lease.

        Raises:
            RegisterConflict: the value is not `before` any more; nothing was changed.
            RegisterHeld: the master has a lease (or may have, as the keepers have just started); nothing was changed.
            RegisterUnavailable: no majority could be asked; nothing was changed.
            RegisterUnknown: it may be changed, now or later.
            InvalidInput: `after` is no state that may be.
        """

    async def groups(self) -> Sequence[str]:
        """The names of all groups that have a value; RegisterUnavailable."""

    async def renew(self, group: str, claim: LeaseClaim) -> float:
        """Give the master its lease, or prolong it: so many seconds, counted from before this call began.

        After a call that failed the next one reads the value first, so that a master whose requests arrive and who gets
        no answers does not hold up its own succession.

        Raises:
            RegisterConflict: by the register's value somebody else is master, or nobody.
            RegisterHeld: another one's lease has not ended, or a change of the master is being decided.
            RegisterUnavailable: no majority could be asked; a lease that was given before goes on.
        """

    async def release(self, group: str, claim: LeaseClaim) -> None:
        """End the master's lease, as far as keepers can be told: for a planned change of the master. Never fails."""
