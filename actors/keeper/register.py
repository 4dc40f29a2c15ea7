"""The interface of the register of masters, which the keepers and etcd implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered


class Register(Protocol):
    """Values by group name, changed by compare-and-set, and a lease for each group's master.

    Calls are linearizable: each takes effect once, between its beginning and its end. A call that ends with
    RegisterUnknown takes effect at most once, and perhaps later. The methods are coroutines of one event loop, and may
    run concurrently.
    """

    async def read(self, group: str) -> Registered:
        """Return the current value; version 0 and None if there is none.

        Raises:
            RegisterUnavailable: no majority could be reached.
        """

    async def settle(self, group: str) -> Registered:
        """Return the value, and rule out all earlier changes that ended with RegisterUnknown.

        A `read` does not guarantee that: it may return the former value, and the change may be made afterwards.

        Raises:
            RegisterUnavailable: no majority could be reached.
        """

    async def change(self, group: str, before: Registered, after: GroupState) -> Registered:
        """Replace `before`, which the caller has read, by `after`; return the new value.

        The new value has its version. A change of the master, of its process or of its epoch has to wait until the
        lease ends.

        Raises:
            RegisterConflict: the value is not `before` any more; nothing was changed.
            RegisterHeld: the master has a lease (or may have one, as the keepers have just started); nothing was
                changed.
            RegisterUnavailable: no majority could be reached; nothing was changed.
            RegisterUnknown: the change may be made now or later.
            InvalidInput: `after` is not a valid state.
        """

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups that have a value.

        Raise RegisterUnavailable if no majority could be reached.
        """

    async def renew(self, group: str, claim: LeaseClaim) -> float:
        """Give or extend the master's lease; return its seconds, counted from this call's start.

        After a failed call the next one reads the value first. So a master whose requests arrive but that receives no
        answers does not delay the election of its successor.

        Raises:
            RegisterConflict: in the register's value another replica is master, or none.
            RegisterHeld: another lease has not ended, or a change of the master is being decided.
            RegisterUnavailable: no majority could be reached; a lease that was given before stays valid.
        """

    async def release(self, group: str, claim: LeaseClaim) -> None:
        """End the master's lease at the keepers that can be reached.

        It is used for a planned change of the master. It never fails.
        """
