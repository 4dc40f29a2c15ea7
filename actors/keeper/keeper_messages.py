"""Requests to a keeper and its answers, as plain values.

Proposers and masters send the requests. A *ballot* numbers an attempt to decide. The greater of two ballots wins. No
two attempts have the same ballot, because `proposer` is random for each process that proposes, and the rounds of a
process only rise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_set import KeeperSet

#: The key of the set of keepers itself; all other keys are names of broker groups.
KEEPERS: Final = ""
#: The greatest length of a key, in characters.
MAX_KEY_LENGTH: Final = 255
#: The most keys in one answer.
MAX_KEYS: Final = 10_000

_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Key = Annotated[str, Meta(max_length=MAX_KEY_LENGTH)]
_Seconds = Annotated[float, Meta(ge=0, lt=3600)]


class Ballot(NamedTuple):
    """The number of an attempt: first the round, then the proposer."""

    round: _Number
    proposer: _Number


NO_BALLOT: Final = Ballot(0, 0)


@dataclass(frozen=True, slots=True)
class Registered:
    """A value of the register.

    Attributes:
        version: counts the changes of this key; 0: the key was never written.
        change: a random text of the change that wrote the value, by which the writer recognizes its own change.
    """

    version: _Number = 0
    change: _Key = ""
    value: GroupState | KeeperSet | None = None


NOTHING: Final = Registered()


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """A replica's claim to the master's lease.

    It has the replica's number, the nonce of its process, and the epoch in which it was elected.
    """

    replica: _Number
    nonce: _Key
    epoch: _Number


class _Message(Struct, frozen=True, tag_field="kind", tag=True, forbid_unknown_fields=True):
    """Base class of requests and answers.

    The name of a message's class is its kind on the wire.
    """


class Prepare(_Message, frozen=True):
    """Request to promise to accept nothing below this ballot, and to report the accepted value.

    `moves`: the change is to remove the master, or to give the group one.
    """

    key: _Key
    ballot: Ballot
    moves: bool = False


class Accept(_Message, frozen=True):
    """Request to accept this value under this ballot."""

    key: _Key
    ballot: Ballot
    entry: Registered


class Inquire(_Message, frozen=True):
    """Request to report the promised ballot and the accepted value, without a promise."""

    key: _Key


class ListKeys(_Message, frozen=True):
    """Request to list all keys."""


class Renew(_Message, frozen=True):
    """Request to give or extend the master's lease of a group.

    The lease lasts one TTL from the keeper's answer.
    """

    key: _Key
    claim: LeaseClaim


class Release(_Message, frozen=True):
    """Request of a master that steps down: end its lease now."""

    key: _Key
    claim: LeaseClaim


Request = Prepare | Accept | Inquire | ListKeys | Renew | Release


@dataclass(frozen=True, slots=True)
class KeeperCall:
    """A request with the set of keepers and the incarnation that the client expects.

    `set_number` is the number of the set that the client knows; `incarnation` is the keeper that the call is for.
    """

    set_number: _Number
    incarnation: _Key
    request: Request


class Promised(_Message, frozen=True):
    """The promise, with the value that was accepted last and its ballot."""

    ballot: Ballot
    accepted: Ballot
    entry: Registered


class AcceptedBallot(_Message, frozen=True):
    """The value is accepted and on disk."""

    ballot: Ballot


class Standing(_Message, frozen=True):
    """The answer to `Inquire`: the promised ballot, and the accepted ballot and value."""

    promised: Ballot
    accepted: Ballot
    entry: Registered


class Keys(_Message, frozen=True):
    """All keys for which this keeper has accepted a value."""

    keys: Annotated[tuple[_Key, ...], Meta(max_length=MAX_KEYS)]


class LeaseGiven(_Message, frozen=True):
    """A lease of `seconds`, counted from the keeper's answer.

    The master counts the seconds from before its request.
    """

    seconds: _Seconds


class Released(_Message, frozen=True):
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


class KeeperRefused(_Message, frozen=True):
    """The keeper refuses the request, and has changed nothing that the request asked for."""

    reason: Reason
    ballot: Ballot = NO_BALLOT
    wait_seconds: _Seconds = 0.0
    keepers: KeeperSet | None = None


Answer = Promised | AcceptedBallot | Standing | Keys | LeaseGiven | Released | KeeperRefused
