"""List the deliberate bugs that the model must catch, and the faults that reveal each.

A run without any of them is the real system. Three bugs are not in the list, because the model shows that each of them
is harmless by itself: electing without fencing loses nothing acknowledged, since a winner stops following before it
begins its epoch; the order of epochs and log lengths does not matter among in-sync replicas, which all have what is
confirmed; and folding too early only costs a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Bug:
    """Describe one deliberate bug.

    Attributes:
        what: what the bug does.
        faults: the faults that reveal it; empty for all faults.
        config: parameters of the world in which it shows.
    """

    what: str
    faults: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


def _world(mode: str = "sync", min_in_sync: int = 1, **more: Any) -> dict[str, Any]:
    return {"mode": mode, "min_in_sync": min_in_sync, "flush_sync": False, **more}


_CUT = ("cut_off_but_for_the_client", "mend", "nothing", "start", "kill_and_start")
_ASYNC = _world("async")

BUGS: Final = {
    "skip the lease check": Bug(
        "a master acknowledges whether or not its lease holds",
        ("cut_off_but_for_the_client", "mend", "nothing", "stop", "go_on"),
        _ASYNC,
    ),
    "look at the lease before the wait only": Bug(
        "the lease is not looked at again after the last await", ("stop", "nothing", "go_on", "slow_network"), _world()
    ),
    "count the lease from its answer": Bug(
        "a lease counts from when the answer came, and is used to the full",
        (
            *("slow_network", "cut_answers_of_keepers", "mend", "nothing", "stop", "go_on"),
            "cut_from_the_coordinator",
        ),
        _world(),
    ),
    "cut in memory only": Bug("a cut log comes back with the next start"),
    "cut without the state": Bug("log and epochs are cut, the state frames are not"),
    "elect by heartbeat": Bug("the winner is chosen by what replicas said up to some seconds before"),
    "elect the longest of all": Bug(
        "the winner need not be in sync", ("cut_off_but_for_the_client", "mend", "nothing", "kill", "start"), _ASYNC
    ),
    "trust a lost tail": Bug(
        "a member that lost its tail by a loss of power is elected like any other",
        ("lose_power", "start", "cut_off", "mend", "kill", "nothing"),
        _world(),
    ),
    "cut the tail of the new master": Bug("a new master cuts what it does not know to be confirmed", (), _world()),
    "grow the set before the answer": Bug("a member that may be in the set by now is not waited for yet"),
    "shrink the set before the answer": Bug("a member that is about to leave is not waited for any more"),
    "take in who lags": Bug(
        "a replica comes into the set without all that is confirmed",
        ("cut_between_brokers", "mend", "kill", "start", "kill_and_start", "slow_network"),
        _world(replicas=2),
    ),
    "believe old connections": Bug("what any connection of a replica has ever said counts", (), _world()),
    "acknowledge what was received": Bug("a replica acknowledges before it has written"),
    "acknowledge before the fsync": Bug("with sync flush a replica acknowledges what is not on disk"),
    "ignore min_in_sync at the end": Bug(
        "a set that shrank meanwhile makes a message safe",
        ("cut_between_brokers", "kill", "start", "mend", "nothing"),
        _world(min_in_sync=2),
    ),
    "show what is not confirmed": Bug("consumers see up to the end of the log", _CUT, _world(replicas=2)),
    "skip the CRC": Bug("a replica writes a chunk with a flipped bit", ("flip_bits", "nothing"), _world()),
    "go on after a restart": Bug("a master that was restarted goes on in its epoch"),
    "end another one's lease": Bug(
        "a process that starts has the master's lease ended, whoever has it",
        ("cut_off_but_for_the_client", "mend", "kill_and_start", "nothing"),
        _ASYNC,
    ),
    "keepers forget leases": Bug(
        "a restarted keeper lets masters be changed at once",
        ("cut_off_but_for_the_client", "mend", "restart_two_keepers", "cut_from_the_coordinator"),
        _ASYNC,
    ),
    "keepers ignore leases": Bug(
        "a keeper lets a master be taken away under its lease",
        ("cut_from_the_coordinator", "mend", "nothing", "restart_the_coordinator"),
        _ASYNC,
    ),
}

#: One seed per bug that reveals it; other seeds reveal it, too.
SEEDS: Final = {
    "skip the lease check": 1,
    "look at the lease before the wait only": 2,
    "count the lease from its answer": 96,
    "elect by heartbeat": 38,
    "elect the longest of all": 1,
    "trust a lost tail": 10,
    "take in who lags": 11,
    "believe old connections": 2,
    "ignore min_in_sync at the end": 3,
    "show what is not confirmed": 1,
    "skip the CRC": 6,
    "go on after a restart": 11,
    "keepers forget leases": 3,
}
