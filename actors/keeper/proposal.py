"""One attempt to decide a value, as decisions over what keepers have answered. No I/O.

A `Proposal` makes the requests, says when enough answers are there, and which value they oblige it to. Who drives it
(`KeeperRegister`) sends and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.messages import (
    NO_BALLOT,
    NOTHING,
    Accept,
    AcceptedBallot,
    Answer,
    Ballot,
    Inquire,
    KeeperCall,
    KeeperRefused,
    LeaseGiven,
    Prepare,
    Promised,
    Reason,
    Registered,
    Request,
    Standing,
)

#: What keepers have answered, by their numbers. Who has not answered is not in it.
Answers = Mapping[int, Answer]
_T = TypeVar("_T", bound=Answer)
#: These refusals are told to the caller rather than tried again, the first of them that somebody said.
_TOLD: Final = (Reason.OLD_SET, Reason.HELD, Reason.PREEMPTED)


def calls(keepers: KeeperSet, request: Request) -> dict[int, KeeperCall]:
    """The same request to every keeper."""
    return {
        number: KeeperCall(keepers.number, member.incarnation, request) for number, member in keepers.everyone.items()
    }


def those(answers: Answers, kind: type[_T]) -> dict[int, _T]:
    """The answers of one kind."""
    return {number: answer for number, answer in answers.items() if isinstance(answer, kind)}


def enough(keepers: KeeperSet, kind: type[Answer]) -> Callable[[Answers], bool]:
    """Whether no further answer can change anything: a majority has answered so, or cannot any more."""

    def is_enough(answers: Answers) -> bool:
        agreed = those(answers, kind)
        return keepers.has_majority(agreed) or not keepers.may_have_majority(answers.keys() - agreed.keys())

    return is_enough


def refusal(answers: Answers) -> KeeperRefused | None:
    """The refusal that says most about why there is no majority; None if nobody has refused for such a reason."""
    refused = those(answers, KeeperRefused).values()
    for reason in _TOLD:
        found = [each for each in refused if each.reason is reason]
        if found:
            return max(found, key=lambda each: (each.keepers.number if each.keepers else 0, each.ballot))
    return None


def longest_wait(answers: Answers) -> float:
    """How long a lease is in the way, by those who said so; in seconds."""
    return max((each.wait_seconds for each in those(answers, KeeperRefused).values()), default=0.0)


def read_at_once(keepers: KeeperSet, answers: Answers) -> Registered | None:
    """The value, if a majority has accepted it under one ballot: nothing later can have been decided. Else None."""
    standing = those(answers, Standing)
    newest = max((each.accepted for each in standing.values()), default=NO_BALLOT)
    agreed = {number: each for number, each in standing.items() if each.accepted == newest}
    if not keepers.has_majority(agreed):
        return None
    return next(iter(agreed.values())).entry


def has_lease(keepers: KeeperSet, answers: Answers) -> bool:
    """Whether a majority has given the lease."""
    return keepers.has_majority(those(answers, LeaseGiven))


class Proposal:
    """One attempt under one ballot. `prepare`, then `promised`, then `accept`, then `is_chosen`."""

    def __init__(self, keepers: KeeperSet, key: str, ballot: Ballot, *, moves: bool = False) -> None:
        self._keepers = keepers
        self._key = key
        self._ballot = ballot
        self._moves = moves

    def inquire(self) -> dict[int, KeeperCall]:
        """What to ask for a look that promises nothing."""
        return calls(self._keepers, Inquire(self._key))

    def prepare(self) -> dict[int, KeeperCall]:
        """What to send first."""
        return calls(self._keepers, Prepare(self._key, self._ballot, self._moves))

    def promised(self, answers: Answers) -> Registered | None:
        """The value that stands, from the promises of a majority; None: there is none.

        It is the one accepted under the greatest ballot; whatever is proposed has to be made from it.
        """
        promises = those(answers, Promised)
        if not self._keepers.has_majority(promises):
            return None
        newest = max(promises.values(), key=lambda each: each.accepted)
        return newest.entry if newest.accepted != NO_BALLOT else NOTHING

    def accept(self, entry: Registered) -> dict[int, KeeperCall]:
        """What to send after the promises."""
        return calls(self._keepers, Accept(self._key, self._ballot, entry))

    def is_chosen(self, answers: Answers) -> bool:
        """Whether a majority has accepted: it is decided."""
        return self._keepers.has_majority(those(answers, AcceptedBallot))
