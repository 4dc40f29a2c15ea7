"""One attempt to decide a value, computed from the answers of keepers.

The module performs no I/O. A `Proposal` makes the requests, and returns the value that the promises bind it to;
functions beside it say when there are enough answers. Its caller (`KeeperRegister`) sends the requests and waits for
the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from raymq.actors.keeper.keeper_messages import (
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
from raymq.actors.keeper.keeper_set import KeeperSet

#: The answers of keepers by their numbers, without the keepers that have not answered.
Answers = Mapping[int, Answer]
_T = TypeVar("_T", bound=Answer)
#: The refusals that `main_refusal` may return, in descending priority.
_TOLD: Final = (Reason.OLD_SET, Reason.HELD, Reason.PREEMPTED)


def calls_to_all(keepers: KeeperSet, request: Request) -> dict[int, KeeperCall]:
    """Return the same request for every keeper."""
    return {
        number: KeeperCall(keepers.number, member.incarnation, request)
        for number, member in keepers.all_members.items()
    }


def answers_of_kind(answers: Answers, kind: type[_T]) -> dict[int, _T]:
    """Return the answers of one type."""
    return {number: answer for number, answer in answers.items() if isinstance(answer, kind)}


def majority_reached(keepers: KeeperSet, kind: type[Answer]) -> Callable[[Answers], bool]:
    """Return a predicate that is True once further answers cannot change the outcome.

    A majority has answered with `kind`, or no majority can do so any more.
    """

    def is_enough(answers: Answers) -> bool:
        agreed = answers_of_kind(answers, kind)
        return keepers.has_majority(agreed) or not keepers.may_have_majority(answers.keys() - agreed.keys())

    return is_enough


def main_refusal(answers: Answers) -> KeeperRefused | None:
    """Return the refusal that explains best why there is no majority.

    Return None if no keeper has refused for one of the reasons in `_TOLD`.
    """
    refused = answers_of_kind(answers, KeeperRefused).values()
    for reason in _TOLD:
        found = [each for each in refused if each.reason is reason]
        if found:
            return max(found, key=lambda each: (each.keepers.number if each.keepers else 0, each.ballot))
    return None


def longest_wait(answers: Answers) -> float:
    """Return the longest `wait_seconds` of the refusals: how long a lease blocks the change."""
    return max((each.wait_seconds for each in answers_of_kind(answers, KeeperRefused).values()), default=0.0)


def decided_value(keepers: KeeperSet, answers: Answers) -> Registered | None:
    """Return the value that a majority has accepted under one ballot.

    Nothing later can have been decided then. Return None if there is no such majority.
    """
    standing = answers_of_kind(answers, Standing)
    newest = max((each.accepted for each in standing.values()), default=NO_BALLOT)
    agreed = {number: each for number, each in standing.items() if each.accepted == newest}
    if not keepers.has_majority(agreed):
        return None
    return next(iter(agreed.values())).entry


def has_lease(keepers: KeeperSet, answers: Answers) -> bool:
    """Return True if a majority has given the lease."""
    return keepers.has_majority(answers_of_kind(answers, LeaseGiven))


class Proposal:
    """One attempt under one ballot.

    Call `prepare`, then `promised`, then `accept`, then `is_chosen`.
    """

    def __init__(self, keepers: KeeperSet, key: str, ballot: Ballot, *, moves: bool = False) -> None:
        self._keepers = keepers
        self._key = key
        self._ballot = ballot
        self._moves = moves

    def inquire(self) -> dict[int, KeeperCall]:
        """Return the requests that read the value without a promise."""
        return calls_to_all(self._keepers, Inquire(self._key))

    def prepare(self) -> dict[int, KeeperCall]:
        """Return the requests of the first phase."""
        return calls_to_all(self._keepers, Prepare(self._key, self._ballot, self._moves))

    def promised(self, answers: Answers) -> Registered | None:
        """Return the current value, given the promises of a majority; None without a majority.

        It is the value that was accepted under the greatest ballot. Every proposal has to be made from it.
        """
        promises = answers_of_kind(answers, Promised)
        if not self._keepers.has_majority(promises):
            return None
        newest = max(promises.values(), key=lambda each: each.accepted)
        return newest.entry if newest.accepted != NO_BALLOT else NOTHING

    def accept(self, entry: Registered) -> dict[int, KeeperCall]:
        """Return the requests of the second phase."""
        return calls_to_all(self._keepers, Accept(self._key, self._ballot, entry))

    def is_chosen(self, answers: Answers) -> bool:
        """Return True if a majority has accepted the value, which is then decided."""
        return self._keepers.has_majority(answers_of_kind(answers, AcceptedBallot))
