"""Elect a master from what replicas report after they were fenced.

Heartbeats are never used.

1. The coordinator sets the register to "electing, epoch e": from then on nothing of the former epoch can change there.
2. It fences (seals) every replica that it reaches: from then on that replica durably refuses the stream of every master
   before e. The replica reports what it has on its disk.
3. `choose_master`: of the in-sync members that surely have all they had, the one with the largest (epoch, end), then
   the lowest priority number.
4. The register gets the winner as master of epoch e, with those in sync that have exactly the same stream.

The winner keeps all that it has and confirms it in its epoch: the former master may have acknowledged it, as this
member had it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.keeper.group_state import GroupState

#: The priority of a replica without a setting; lower numbers come first.
DEFAULT_PRIORITY: Final = 100


@dataclass(frozen=True, slots=True)
class FencedState:
    """The state that a replica reports after it was fenced, read from its disk.

    Attributes:
        replica, identity, nonce: identify it; an answer of another directory or process does not count.
        fenced: the epoch below which it accepts no master any more.
        epoch: the one in which its stream ends (`StreamExtent.epoch`).
        end: where its stream ends.
        tail_lost: since it was last in sync it has stopped so that its tail may be lost: its machine went down without
            a clean stop, and it does not flush before it acknowledges.
        healthy: its disk takes writes.
        priority: lower numbers become master first.
        reaches_keepers: it has read the register lately. A replica that does not could not hold a lease, and would be
            elected again and again.
    """

    replica: int
    identity: str
    nonce: str
    fenced: int
    epoch: int
    end: StreamPosition
    tail_lost: bool = False
    healthy: bool = True
    priority: int = DEFAULT_PRIORITY
    reaches_keepers: bool = True


@dataclass(frozen=True, slots=True)
class Winner:
    """The replica that becomes master, and the in-sync set at the beginning of its epoch.

    `warning` states which data may be lost by this choice, for the operator; empty: none.
    """

    replica: int
    in_sync: frozenset[int]
    warning: str = ""

    @property
    def may_lack(self) -> bool:
        """Return True if the winner may lack confirmed messages, which readers may have seen."""
        return bool(self.warning)


@dataclass(frozen=True, slots=True)
class NoWinner:
    """The result that no replica can become master now; `reason` states why."""

    reason: str


def choose_master(
    state: GroupState, answers: Mapping[int, FencedState], *, designated: int | None = None, unclean: bool = False
) -> Winner | NoWinner:
    """Return the winner of the election in the register's `state`, which has no master.

    Args:
        answers: what the reached replicas reported in this election.
        designated: the operator prefers this one, if it may become master.
        unclean: the operator accepts the loss of data that none of the reached replicas has.
    """
    valid = {number: answer for number, answer in answers.items() if _counts(state, number, answer)}
    intact = {number: each for number, each in valid.items() if number in state.in_sync and not each.tail_lost}
    warning = ""
    candidates = intact
    if not candidates and state.replicas.keys() == valid.keys():
        # No other replica can have more: the longest log contains all that exists.
        candidates = valid
        warning = "every in-sync replica may have lost the end of its log: the longest log of all replicas was taken"
    if not candidates and unclean:
        candidates = valid
        warning = "unclean election, on request: messages that only other replicas have are lost"
    if not candidates:
        missing = sorted(state.replicas.keys() - valid.keys())
        return NoWinner(
            f"no in-sync replica {sorted(state.in_sync)} is certain to have all of its log; missing: {missing}"
        )
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
    """Return the entry with which a new master begins its epoch.

    The epoch begins at the master's end, and the tail is kept. In a store without epochs the first epoch includes all
    its data. The map is clamped to the end before.
    """
    return EpochStart(epoch, end if len(epochs) else begin)


def _counts(state: GroupState, number: int, answer: FencedState) -> bool:
    record = state.replicas.get(number)
    return (
        record is not None
        and answer.replica == number
        and (answer.identity, answer.nonce) == (record.identity, record.nonce)
        and answer.fenced == state.epoch
        and answer.healthy
    )


def _rank(answer: FencedState) -> tuple[int, int, int, int, int]:
    return -answer.epoch, -answer.end.offset, -answer.end.sequence, answer.priority, answer.replica
