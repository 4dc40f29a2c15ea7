"""What a group needs next, by what the register and its replicas say. One object per group; no I/O, injected clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from raymq.actors.broker.replication.election import NoWinner, SealedState, Winner, choose
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord, ReplicationPolicy
from raymq.actors.wire.commands.replication import ReplicaStatus

#: How often each group is looked at, and for a while where its master is silent or an election has begun.
TURN_SECONDS: Final = 0.3
SOON_SECONDS: Final = 0.1
#: A master that has not said for so long that it serves is taken for gone.
SILENT_SECONDS: Final = 1.2
#: One that was just elected opens its store first: if it says nothing at all for so long, it is taken for gone.
NEW_SILENT_SECONDS: Final = 3.0
#: If it says all the time that it is about to serve, it has this long, where another one might be elected.
BECOMING_SECONDS: Final = 30.0
#: Both times double with each election in a row of which nobody came to serve, up to so many times as long: who takes
#: long to open a store would else be elected for ever.
MOST_PATIENCE: Final = 64
#: Members in sync that may be there are waited for, so that the one that has most is chosen.
GATHER_SECONDS: Final = 1.0
#: How often all replicas are asked, while one is not in sync: one that is not there takes a part of a turn.
OTHERS_SECONDS: Final = 3.0
#: Of such an election nobody can say that its winner has all that readers have seen.
WAS_OLDER: Final = "the register was older than what its replicas know"


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done now. `trouble` says what is in the way of the group's having a master; empty: nothing."""

    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Put this into the register in the place of what was read; `why` is for the log."""

    after: GroupState
    why: str


@dataclass(frozen=True, slots=True)
class Seal:
    """Have all replicas refuse every master before the state's epoch, and hear what they have."""


@dataclass(frozen=True, slots=True)
class LeaveOffice:
    """Have the master of the state leave its office, by sealing it to the next epoch; `why` is for the log."""

    why: str


class GroupWatch:
    """What one coordinator knows of one group: nothing that another one could not find out."""

    def __init__(self, name: str, clock: Callable[[], float], policy: ReplicationPolicy | None = None) -> None:
        """`policy`: what the group is to promise; None: whatever the register says."""
        self._name = name
        self._clock = clock
        self._policy = policy
        #: Of which master and process the times below are: (replica, nonce, epoch).
        self._of: tuple[int, str, int] | None = None
        self._since = 0.0
        self._served_at: float | None = None
        self._heard_at = 0.0
        #: Whether the master did not say at the last look that it serves, or is about to.
        self._is_silent = False
        #: How many times as long as others one that was just elected is waited for.
        self._patience = 1
        #: Who was elected last and did not come to serve: another one who may be is tried before it.
        self._never_served: int | None = None
        #: The master that this coordinator has taken away: it is not waited for.
        self._gone: int | None = None
        #: The epoch of the election that is under way, and since when it is watched.
        self._electing: int | None = None
        self._electing_since = 0.0
        #: When those that are not in sync are asked again.
        self._others_at = clock() + OTHERS_SECONDS

    @property
    def turn_seconds(self) -> float:
        """Return how soon the group is to be looked at again: sooner while an election begins, or is about to."""
        since = self._electing_since if self._electing is not None else self._heard_at
        waits = self._electing is not None or self._is_silent
        return SOON_SECONDS if waits and self._clock() - since < NEW_SILENT_SECONDS else TURN_SECONDS

    def asked(self, state: GroupState | None) -> dict[int, ReplicaRecord]:
        """Who is to be asked for `next` how it does."""
        if state is None or state.master is None:
            return {}
        if self._clock() < self._others_at or state.in_sync == state.replicas.keys():
            return {state.master: state.replicas[state.master]}
        self._others_at = self._clock() + OTHERS_SECONDS
        return dict(state.replicas)

    def next(self, state: GroupState | None, heard: Mapping[int, ReplicaStatus]) -> Rest | Change | Seal | LeaveOffice:
        """What is to be done.

        Args:
            state: the register's value, just read.
            heard: what replicas have answered just now, the master above all.
        """
        if state is None:
            if self._policy is None:
                return Rest("the group has not been founded")
            return Change(GroupState(policy=self._policy), "is founded")
        if self._policy is not None and state.policy != self._policy:
            return Change(replace(state, policy=self._policy), f"promises {self._policy} from now on")
        if not state.replicas:
            return Rest("no replica has started yet")
        if state.epoch == 0:
            return Change(state.electing(), "begins")  # brokers have no epoch 0
        if state.master is None:
            return Seal()
        self._electing = None
        gone = self._why_gone(state, state.master, heard.get(state.master))
        if gone is None and (sealed := self._sealed(state, heard)):
            return LeaveOffice(f"replicas {sealed} are sealed to a later epoch than {state.epoch}, and follow nobody")
        if gone is None:
            return Rest("" if self._served_at is not None else f"replica {state.master} is about to become master")
        self._gone = state.master
        return Change(state.electing(), f"its master {state.master} of epoch {state.epoch} {gone}")

    def elect(
        self,
        state: GroupState,
        sealed: Mapping[int, SealedState],
        heard: Mapping[int, ReplicaStatus] = MappingProxyType({}),
    ) -> Rest | Change:
        """Who becomes master, by what the replicas answered to `Seal`; `heard`: how replicas do."""
        later = later_epoch(state, sealed, heard)
        if later is not None:
            return later
        now = self._clock()
        if self._electing != state.epoch:
            self._electing, self._electing_since = state.epoch, now
        missing = state.in_sync - sealed.keys() - {self._gone}
        if missing and now - self._electing_since < GATHER_SECONDS:
            return Rest(f"waiting for replicas {sorted(missing)}")
        others = {number: each for number, each in sealed.items() if number != self._never_served}
        winner = self.choose(state, others)
        if isinstance(winner, NoWinner) or winner.warning:
            winner = self.choose(state, sealed)
        if isinstance(winner, NoWinner):
            return Rest(winner.reason)
        told = f" ({winner.warning})" if winner.warning else ""
        return Change(
            state.elected(winner.replica, winner.in_sync, may_lack=winner.may_lack),
            f"elects {winner.replica} in epoch {state.epoch}, in sync {sorted(winner.in_sync)}{told}",
        )

    def choose(self, state: GroupState, sealed: Mapping[int, SealedState]) -> Winner | NoWinner:
        """As `election.choose`."""
        return choose(state, sealed)

    def _sealed(self, state: GroupState, heard: Mapping[int, ReplicaStatus]) -> list[int]:
        """Who follows no master of this epoch, while there is one: of an election that never was.

        Of a later one than the next all replicas will be asked (`later_epoch`): nobody where one is missing. Nor where
        another epoch has begun since: that log would be elected, without what this master has acknowledged.
        """
        records = state.replicas
        known = {n: each for n, each in heard.items() if n in records and each.identity == records[n].identity}
        is_next = all(each.sealed <= state.epoch + 1 for each in known.values())
        if self._served_at is None or (not is_next and known.keys() != records.keys()):
            return []
        if any(each.epoch > state.epoch for each in known.values()):
            return []
        waiting = known.keys() - state.in_sync
        return sorted(n for n in waiting if known[n].nonce == records[n].nonce and known[n].sealed > state.epoch)

    def _why_gone(self, state: GroupState, master: int, status: ReplicaStatus | None) -> str | None:
        """Why the master is taken for gone; None: it is not."""
        now = self._clock()
        self._is_silent = True
        nonce = state.replicas[master].nonce
        if self._of != (master, nonce, state.epoch):
            self._of, self._since, self._served_at, self._heard_at = (master, nonce, state.epoch), now, None, now
        if status is not None and (status.replica, status.nonce) == (master, nonce):
            if status.serves and status.epoch == state.epoch:
                self._served_at = self._heard_at = now
                self._is_silent = False
                self._patience, self._never_served = 1, None
            elif status.role != "refused" and status.reaches_keepers and _is_about_to_serve(status, state.epoch):
                self._heard_at, self._is_silent = now, False
        if self._served_at is not None:
            return None if now - self._served_at < SILENT_SECONDS else f"has not served for {SILENT_SECONDS} s"
        silent, becoming = NEW_SILENT_SECONDS * self._patience, BECOMING_SECONDS * self._patience
        if now - self._heard_at >= silent:
            why = f"has not come to serve for {silent:g} s"
        elif now - self._since >= becoming and state.in_sync != {master}:  # else it would be elected again
            why = f"has not begun it in {becoming:g} s"
        else:
            return None
        self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._never_served = master
        return why


def _is_about_to_serve(status: ReplicaStatus, epoch: int) -> bool:
    """Whether it has not begun its epoch yet, or opens its store."""
    if status.sealed > epoch:
        return False  # and never will be
    return status.epoch < epoch or (status.epoch == epoch and status.role == "opening")


def later_epoch(
    state: GroupState,
    sealed: Mapping[int, SealedState],
    heard: Mapping[int, ReplicaStatus],
    *,
    unclean: bool = False,
) -> Rest | Change | None:
    """What has to be done before the election of `state` where replicas know of later epochs; None: they do not.

    Nobody is master in an epoch that has begun before, and who is sealed to a later one answers no election. Where one
    has begun, or two were to, the register is older than that, such as an etcd that was restored from a backup: nobody
    knows who is in sync, and only the longest log of all replicas surely has what was acknowledged, once nobody
    acknowledges anything any more: what is heard was not sealed. To the next one alone anybody may seal a replica.

    Args:
        unclean: the operator takes the loss of what nobody who was reached has.
    """
    answers: dict[int, ReplicaStatus | SealedState] = {**heard, **sealed}
    known = {
        number: (each.epoch, each.end, each.sealed)
        for number, each in answers.items()
        if number in state.replicas and each.identity == state.replicas[number].identity
    }
    epoch = max((max(begun + 1, sealed_to) for begun, _, sealed_to in known.values()), default=0)
    if epoch <= state.epoch:
        return None
    after = replace(state, epoch=epoch)
    if all(begun < state.epoch and sealed_to <= state.epoch + 1 for begun, _, sealed_to in known.values()):
        return Change(after, f"elects in epoch {epoch}, to which a replica is sealed")
    missing = sorted(state.replicas.keys() - known.keys())
    if missing and not unclean:
        return Rest(f"the register is older than what replicas {sorted(known)} know; missing: {missing}")
    serving = sorted(number for number, each in heard.items() if number in known and each.serves)
    if serving:
        return Rest(f"the register is older than what replicas {sorted(known)} know, and {serving} has a lease yet")
    most = max(told[:2] for told in known.values())
    longest = frozenset(number for number, told in known.items() if told[:2] == most)
    after = replace(after, in_sync=longest, set_epoch=state.set_epoch + 1, loss_epoch=epoch)
    return Change(after, f"elects in epoch {epoch}: {WAS_OLDER}, {sorted(longest)} know most")
