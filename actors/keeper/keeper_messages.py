"""Requests to a keeper and its answers, as plain values.

Proposers and masters send the requests. A *ballot* numbers an attempt to decide. The greater of two ballots wins. No
two attempts have the same ballot, because `proposer` is random for each process that proposes, and the rounds of a
process only rise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_set import KeeperSet

#: The key of the set of keepers itself; all other keys are names of broker groups.
KEEPERS: Final = ""
#: The greatest length of a key, in characters.
MAX_KEY_LENGTH: Final = 255


class Ballot(NamedTuple):
    """The number of an attempt: first the round, then the proposer."""

    round: int
    proposer: int


NO_BALLOT: Final = Ballot(0, 0)


@dataclass(frozen=True, slots=True)
class Registered:
    """A value of the register.

    Attributes:
        version: counts the changes of this key; 0: the key was never written.
        change: a random text of the change that wrote the value, by which the writer recognizes its own change.
    """

    version: int = 0
    change: str = ""
    value: GroupState | KeeperSet | None = None


NOTHING: Final = Registered()


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """A replica's claim to the master's lease.

    It has the replica's number, the nonce of its process, and the epoch in which it was elected.
    """

    replica: int
    nonce: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Request to promise to accept nothing below this ballot, and to report the accepted value.

    `moves`: the change is to remove the master, or to give the group one.
    """

    key: str
    ballot: Ballot
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Accept:
    """Request to accept this value under this ballot."""

    key: str
    ballot: Ballot
    entry: Registered


@dataclass(frozen=True, slots=True)
class Inquire:
    """Request to report the promised ballot and the accepted value, without a promise."""

    key: str


@dataclass(frozen=True, slots=True)
class ListKeys:
    """Request to list all keys."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Request to give or extend the master's lease of a group.

    The lease lasts one TTL from the keeper's answer.
    """

    key: str
    claim: LeaseClaim


@dataclass(frozen=True, slots=True)
class Release:
    """Request of a master that steps down: end its lease now."""

    key: str
    claim: LeaseClaim


Request = Prepare | Accept | Inquire | ListKeys | Renew | Release


@dataclass(frozen=True, slots=True)
class KeeperCall:
    """A request with the set of keepers and the incarnation that the client expects.

    `set_number` is the number of the set that the client knows; `incarnation` is the keeper that the call is for.
    """

    set_number: int
    incarnation: str
    request: Request


@dataclass(frozen=True, slots=True)
class Promised:
    """The promise, with the value that was accepted last and its ballot."""

    ballot: Ballot
    accepted: Ballot
    entry: Registered


@dataclass(frozen=True, slots=True)
class AcceptedBallot:
    """The value is accepted and on disk."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Standing:
    """The answer to `Inquire`: the promised ballot, and the accepted ballot and value."""

    promised: Ballot
    accepted: Ballot
    entry: Registered


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys for which this keeper has accepted a value."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaseGiven:
    """A lease of `seconds`, counted from the keeper's answer.

    The master counts the seconds from before its request.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Released:
    """The lease has ended."""


class Reason(enum.Enum):
    """Why a keeper refuses a request."""

    #: A greater ballot was promised: `.ballot` is the one to exceed.
    PREEMPTED = "preempted"
    #: A master has an unexpired lease, or this keeper may have given one before its restart: `.wait_seconds`.
    HELD = "held"
    #: In the value that this keeper has accepted, the claimant is not the master. The keeper may be behind.
    NOT_MASTER = "not_master"
    #: A change of the master is being decided.
    ELECTING = "electing"
    #: The client knows an older set of keepers; `.keepers` is the newer one.
    OLD_SET = "old_set"
    #: This is not the keeper that the call is for: another incarnation, or a keeper without a file and without a vote.
    NOT_A_VOTER = "not_a_voter"
    #: The keeper's disk has failed, or its file was replaced by an older copy.
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KeeperRefused:
    """The keeper refuses the request, and has changed nothing that the request asked for."""

    reason: Reason
    ballot: Ballot = NO_BALLOT
    wait_seconds: float = 0.0
    keepers: KeeperSet | None = None


Answer = Promised | AcceptedBallot | Standing | Keys | LeaseGiven | Released | KeeperRefused
