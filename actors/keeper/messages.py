"""What a proposer and a master ask of a keeper, and what it answers: plain values.

A *ballot* numbers an attempt to decide. Of two the greater one wins; no two attempts have the same, because `proposer`
is random for each process that proposes and its rounds only rise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_set import KeeperSet

#: The key of the set of keepers itself; all other keys are names of broker groups.
KEEPERS: Final = ""
#: A key is never longer, in characters.
MOST_KEY: Final = 255


class Ballot(NamedTuple):
    """An attempt's number: the round first, then who attempts."""

    round: int
    proposer: int


NO_BALLOT: Final = Ballot(0, 0)


@dataclass(frozen=True, slots=True)
class Registered:
    """A value of the register.

    Attributes:
        version: counts the changes of this key; 0: nothing was ever written.
        change: a random text of the change that made it, by which who made it knows it again.
    """

    version: int = 0
    change: str = ""
    value: GroupState | KeeperSet | None = None


NOTHING: Final = Registered()


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """Who wants to go on as master: replica number, the nonce of its process, and the epoch it was elected in."""

    replica: int
    nonce: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Promise to accept nothing below this ballot, and say what was accepted.

    `moves`: the change is to take the master away, or to give the group one.
    """

    key: str
    ballot: Ballot
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept this value under this ballot."""

    key: str
    ballot: Ballot
    entry: Registered


@dataclass(frozen=True, slots=True)
class Inquire:
    """Say what was promised and accepted, without promising anything."""

    key: str


@dataclass(frozen=True, slots=True)
class ListKeys:
    """Name all keys."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Give the master of a group its lease, or prolong it, for one TTL from now."""

    key: str
    claim: LeaseClaim


@dataclass(frozen=True, slots=True)
class Release:
    """The master steps down: end its lease now."""

    key: str
    claim: LeaseClaim


Request = Prepare | Accept | Inquire | ListKeys | Renew | Release


@dataclass(frozen=True, slots=True)
class KeeperCall:
    """A request with what the asker believes of the keepers: which set this is, and whom it is talking to."""

    set_number: int
    incarnation: str
    request: Request


@dataclass(frozen=True, slots=True)
class Promised:
    """The promise, with what was accepted last and under which ballot."""

    ballot: Ballot
    accepted: Ballot
    entry: Registered


@dataclass(frozen=True, slots=True)
class AcceptedBallot:
    """The value is accepted and on disk."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Standing:
    """What `Inquire` found."""

    promised: Ballot
    accepted: Ballot
    entry: Registered


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys that this keeper has accepted a value for."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaseGiven:
    """The lease is given for `seconds` from when the keeper answered; who asked counts from before he asked."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Released:
    """The lease has ended."""


class Reason(enum.Enum):
    """Why a keeper refuses."""

    #: A greater ballot was promised: `.ballot` is the one to exceed.
    PREEMPTED = "preempted"
    #: A master has an unexpired lease, or this keeper may have given one before it started: `.wait_seconds`.
    HELD = "held"
    #: By what this keeper has accepted, the claimant is not the master; it may be this keeper that is behind.
    NOT_MASTER = "not_master"
    #: A change of the master is being decided.
    ELECTING = "electing"
    #: The asker knows an older set of keepers; `.keepers` is the newer one.
    OLD_SET = "old_set"
    #: This is not the keeper that is meant: another incarnation, or one without a file that has no voice yet.
    NOT_A_VOTER = "not_a_voter"
    #: The keeper's disk has failed, or its file was replaced by an older copy.
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KeeperRefused:
    """The keeper does not do it; nothing has changed there."""

    reason: Reason
    ballot: Ballot = NO_BALLOT
    wait_seconds: float = 0.0
    keepers: KeeperSet | None = None


Answer = Promised | AcceptedBallot | Standing | Keys | LeaseGiven | Released | KeeperRefused
