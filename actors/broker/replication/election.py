"""Who becomes master. Decided from what replicas say after they were sealed, never from heartbeats.

1. The coordinator has the register say "electing, epoch e": only now nothing of the former epoch can change there.
2. It seals every replica that it reaches: from then on that one refuses the stream of every master before e, durably,
   and says what it has on its disk.
3. `choose`: of the members in sync that surely have all they had, the one with the largest (epoch, end), then the
   lowest priority number.
4. The register gets the winner as master of epoch e, with those in sync that have exactly the same.

The winner keeps all that it has and confirms it in its epoch: the former master may have acknowledged it, as this
member had it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.keeper.group_state import GroupState

#: The priority of a replica for which none is set; lower numbers come first.
DEFAULT_PRIORITY: Final = 100


@dataclass(frozen=True, slots=True)
class SealedState:
    """What a replica says of itself after it was sealed, read from its disk.

    Attributes:
        replica, identity, nonce: who it is; another directory's or process's answer does not count.
        sealed: the epoch below which it accepts no master any more.
        epoch: the one that its stream ends in (`StreamExtent.epoch`).
        end: where its stream ends.
        tail_lost: since it was last in sync it has stopped so that its tail may be gone: its machine went down without
            a clean stop, and it does not flush before it acknowledges.
        healthy: its disk takes writes.
        priority: lower numbers become master first.
        reaches_keepers: it has read the register lately. One that does not could not hold a lease, and would be elected
            again and again.
    """

    replica: int
    identity: str
    nonce: str
    sealed: int
    epoch: int
    end: StreamPosition
    tail_lost: bool = False
    healthy: bool = True
    priority: int = DEFAULT_PRIORITY
    reaches_keepers: bool = True


@dataclass(frozen=True, slots=True)
class Winner:
    """Who becomes master, and who is in sync with it from the beginning.

    `warning`: what may be lost by this choice, for the operator; empty: nothing.
    """

    replica: int
    in_sync: frozenset[int]
    warning: str = ""

    @property
    def may_lack(self) -> bool:
        """Whether it may not have all that was confirmed: what readers have seen may be lost."""
        return bool(self.warning)


@dataclass(frozen=True, slots=True)
class NoWinner:
    """Nobody can become master now; `reason` says what is waited for."""

    reason: str


def choose(
    state: GroupState, answers: Mapping[int, SealedState], *, designated: int | None = None, unclean: bool = False
) -> Winner | NoWinner:
    """The winner of the election that the register's `state` (without a master) stands for.

    Args:
        answers: what the replicas that were reached said in this election.
        designated: the operator wants this one, if it may be.
        unclean: the operator takes the loss of what nobody who was reached has.
    """
    valid = {number: answer for number, answer in answers.items() if _counts(state, number, answer)}
    intact = {number: each for number, each in valid.items() if number in state.in_sync and not each.tail_lost}
    warning = ""
    candidates = intact
    if not candidates and state.replicas.keys() == valid.keys():
        # Nobody else can have more: what the longest one has is all that there is.
        candidates = valid
        warning = "every replica in sync may have lost its tail: the longest log of all replicas was taken"
    if not candidates and unclean:
        candidates = valid
        warning = "unclean, by hand: messages that only other replicas have are lost"
    if not candidates:
        missing = sorted(state.replicas.keys() - valid.keys())
        return NoWinner(f"no replica in sync {sorted(state.in_sync)} has surely all of its log; missing: {missing}")
    able = {number: each for number, each in candidates.items() if each.reaches_keepers}
    if able and candidates is intact:
        candidates = able
    if designated is not None and designated not in candidates:
        return NoWinner(f"replica {designated} may not become master now; these may: {sorted(candidates)}")
    winner = candidates[designated] if designated is not None else min(candidates.values(), key=_rank)
    equal = {
        number
        for number, each in intact.items()
        if (each.epoch, each.end) == (winner.epoch, winner.end) and not warning
    }
    return Winner(winner.replica, frozenset({winner.replica}) | equal, warning)


def first_entry(epochs: EpochMap, epoch: int, begin: StreamPosition, end: StreamPosition) -> EpochStart:
    """The entry with which a new master begins its epoch: at its end, with its tail kept.

    A store that never had an epoch has all it has in its first one. The map is clamped to the end before.
    """
    return EpochStart(epoch, end if len(epochs) else begin)


def _counts(state: GroupState, number: int, answer: SealedState) -> bool:
    record = state.replicas.get(number)
    return (
        record is not None
        and answer.replica == number
        and (answer.identity, answer.nonce) == (record.identity, record.nonce)
        and answer.sealed == state.epoch
        and answer.healthy
    )


def _rank(answer: SealedState) -> tuple[int, int, int, int, int]:
    return -answer.epoch, -answer.end.offset, -answer.end.sequence, answer.priority, answer.replica
