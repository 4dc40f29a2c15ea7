"""Decide the next step for a group, from the register's value and its replicas' status.

There is one object per group, without I/O and with an injected clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from raymq.actors.broker.replication.election import FencedState, NoWinner, Winner, choose_master
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord, ReplicationPolicy
from raymq.actors.wire.commands.replication_commands import ReplicaStatus

#: Seconds between two checks of a group; the second for a while after its master is silent or an election has begun.
CHECK_SECONDS: Final = 0.3
FAST_CHECK_SECONDS: Final = 0.1
#: A master that has not reported for this long that it serves is replaced.
SILENT_SECONDS: Final = 1.2
#: A master that was just elected opens its store first. It is replaced if it does not respond at all for this long.
STARTUP_SILENT_SECONDS: Final = 3.0
#: A new master that keeps reporting that it is about to serve has this long, if another replica could be elected.
OPENING_SECONDS: Final = 30.0
#: Both times double with each further election whose master did not begin to serve, up to this factor. Else a replica
#: that takes long to open its store would be elected again and again.
MAX_PATIENCE: Final = 64
#: Seconds that an election waits for all replicas in sync, so that the one with the longest log is chosen.
GATHER_SECONDS: Final = 1.0
#: Seconds between two checks of all replicas while one is not in sync: one that does not answer delays the check.
FULL_CHECK_SECONDS: Final = 3.0
#: The warning about an election whose winner may lack messages that consumers have read.
STALE_REGISTER: Final = "the register was older than its replicas"


@dataclass(frozen=True, slots=True)
class Idle:
    """There is nothing to do now.

    `trouble` says why the group has no master; empty if it has one.
    """

    trouble: str = ""


@dataclass(frozen=True, slots=True)
class UpdateRegister:
    """Replace the register's value that was read by `after`; `why` is for the log."""

    after: GroupState
    why: str


@dataclass(frozen=True, slots=True)
class FenceReplicas:
    """Fence all replicas to the state's epoch, and get the ends of their logs.

    A fenced replica refuses every master of an earlier epoch.
    """


@dataclass(frozen=True, slots=True)
class StepDown:
    """Make the current master step down by fencing it to the next epoch.

    `why` is for the log.
    """

    why: str


class FailoverMonitor:
    """The observations of one coordinator about one group.

    Any other coordinator can make the same observations.
    """

    def __init__(self, name: str, clock: Callable[[], float], policy: ReplicationPolicy | None = None) -> None:
        """Start without observations.

        `policy`: the replication policy that the group is to have; None: the one in the register.
        """
        self._name = name
        self._clock = clock
        self._policy = policy
        #: The master and process that the times below are about: (replica, nonce, epoch).
        self._of: tuple[int, str, int] | None = None
        self._since = 0.0
        self._served_at: float | None = None
        self._heard_at = 0.0
        #: Whether the master did not report at the last check that it serves or is about to.
        self._is_silent = False
        #: The current factor of the two time-outs of a master that was just elected.
        self._patience = 1
        #: The replica that was elected last and did not begin to serve: other candidates are preferred.
        self._never_served: int | None = None
        #: The master that this coordinator has removed: an election does not wait for it.
        self._gone: int | None = None
        #: The epoch of the election in progress, and the time when this coordinator first saw it.
        self._electing: int | None = None
        self._electing_since = 0.0
        #: When the replicas that are not in sync are checked next.
        self._others_at = clock() + FULL_CHECK_SECONDS

    @property
    def check_interval(self) -> float:
        """Return the seconds until the next check of the group.

        It is shorter at the beginning of an election, and while the master is silent.
        """
        since = self._electing_since if self._electing is not None else self._heard_at
        waits = self._electing is not None or self._is_silent
        return FAST_CHECK_SECONDS if waits and self._clock() - since < STARTUP_SILENT_SECONDS else CHECK_SECONDS

    def asked(self, state: GroupState | None) -> dict[int, ReplicaRecord]:
        """Return the replicas whose status `next` needs."""
        if state is None or state.master is None:
            return {}
        if self._clock() < self._others_at or state.in_sync == state.replicas.keys():
            return {state.master: state.replicas[state.master]}
        self._others_at = self._clock() + FULL_CHECK_SECONDS
        return dict(state.replicas)

    def next(
        self, state: GroupState | None, statuses: Mapping[int, ReplicaStatus]
    ) -> Idle | UpdateRegister | FenceReplicas | StepDown:
        """Return the next step for the group.

        Args:
            state: the register's value, just read.
            statuses: the statuses that replicas have just reported, most importantly the master.
        """
        if state is None:
            if self._policy is None:
                return Idle("the register does not have the group yet")
            return UpdateRegister(GroupState(policy=self._policy), "is added to the register")
        if self._policy is not None and state.policy != self._policy:
            return UpdateRegister(
                replace(state, policy=self._policy), f"changes its replication policy to {self._policy}"
            )
        if not state.replicas:
            return Idle("no replica has started yet")
        if state.epoch == 0:
            return UpdateRegister(state.start_election(), "starts its first election")  # brokers have no epoch 0
        if state.master is None:
            return FenceReplicas()
        self._electing = None
        failure = self._why_gone(state, state.master, statuses.get(state.master))
        if failure is None and (fenced := self._fenced(state, statuses)):
            return StepDown(f"replicas {fenced} are fenced to a later epoch than {state.epoch} and cannot follow")
        if failure is None:
            return Idle("" if self._served_at is not None else f"replica {state.master} is about to become master")
        self._gone = state.master
        return UpdateRegister(
            state.start_election(), f"starts an election: master {state.master} of epoch {state.epoch} {failure}"
        )

    def elect(
        self,
        state: GroupState,
        fenced: Mapping[int, FencedState],
        statuses: Mapping[int, ReplicaStatus] = MappingProxyType({}),
    ) -> Idle | UpdateRegister:
        """Return the election's result, given the replicas' answers to `FenceReplicas`.

        `statuses` are those of the replicas that have answered.
        """
        later = later_epoch(state, fenced, statuses)
        if later is not None:
            return later
        now = self._clock()
        if self._electing != state.epoch:
            self._electing, self._electing_since = state.epoch, now
        missing = state.in_sync - fenced.keys() - {self._gone}
        if missing and now - self._electing_since < GATHER_SECONDS:
            return Idle(f"waiting for replicas {sorted(missing)}")
        others = {number: each for number, each in fenced.items() if number != self._never_served}
        winner = self.choose_master(state, others)
        if isinstance(winner, NoWinner) or winner.warning:
            winner = self.choose_master(state, fenced)
        if isinstance(winner, NoWinner):
            return Idle(winner.reason)
        warning = f" ({winner.warning})" if winner.warning else ""
        return UpdateRegister(
            state.elected(winner.replica, winner.in_sync, may_lack=winner.may_lack),
            f"elects {winner.replica} in epoch {state.epoch}, in sync {sorted(winner.in_sync)}{warning}",
        )

    def choose_master(self, state: GroupState, fenced: Mapping[int, FencedState]) -> Winner | NoWinner:
        """Choose the winner, as `election.choose_master` describes."""
        return choose_master(state, fenced)

    def _fenced(self, state: GroupState, statuses: Mapping[int, ReplicaStatus]) -> list[int]:
        """Return replicas that are fenced to a later epoch and cannot follow the current master.

        An election that was not completed may have fenced them. If one is fenced to a later epoch than the next one,
        the list is empty while any replica is missing, because the election would need all of them (`later_epoch`). The
        list is also empty if a later epoch has begun on a replica: an election would choose that replica's log, which
        lacks the records that the current master has acknowledged.
        """
        records = state.replicas
        known = {n: each for n, each in statuses.items() if n in records and each.identity == records[n].identity}
        is_next = all(each.fenced <= state.epoch + 1 for each in known.values())
        if self._served_at is None or (not is_next and known.keys() != records.keys()):
            return []
        if any(each.epoch > state.epoch for each in known.values()):
            return []
        waiting = known.keys() - state.in_sync
        return sorted(n for n in waiting if known[n].nonce == records[n].nonce and known[n].fenced > state.epoch)

    def _why_gone(self, state: GroupState, master: int, status: ReplicaStatus | None) -> str | None:
        """Return why the master has to be replaced; None if it does not."""
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
        silent, becoming = STARTUP_SILENT_SECONDS * self._patience, OPENING_SECONDS * self._patience
        if now - self._heard_at >= silent:
            why = f"has not reported for {silent:g} s that it is about to serve"
        elif now - self._since >= becoming and state.in_sync != {master}:  # else it would be elected again
            why = f"has not begun to serve within {becoming:g} s"
        else:
            return None
        self._patience = min(2 * self._patience, MAX_PATIENCE)
        self._never_served = master
        return why


def _is_about_to_serve(status: ReplicaStatus, epoch: int) -> bool:
    """Return True if the replica has not begun its epoch yet, or opens its store."""
    if status.fenced > epoch:
        return False  # fenced: it can never serve in this epoch
    return status.epoch < epoch or (status.epoch == epoch and status.role == "opening")


def later_epoch(
    state: GroupState,
    fenced: Mapping[int, FencedState],
    statuses: Mapping[int, ReplicaStatus],
    *,
    unclean: bool = False,
) -> Idle | UpdateRegister | None:
    """Return the step before the election of `state` if replicas know of later epochs.

    Return None if no replica knows of one.

    A replica that has begun an epoch cannot be master in it again, and a replica that is fenced to a later epoch
    answers no election of this one. Any caller may fence a replica to the next epoch, so this alone only raises the
    epoch of the election. Otherwise the register is older than its replicas, for example an etcd that was restored from
    a backup, and the in-sync set is unknown. Then only the longest log of all replicas surely has all acknowledged
    messages, and only once no replica acknowledges any more: the replicas in `statuses` may not be fenced.

    Args:
        unclean: the operator accepts the loss of messages that no replica which was reached has.
    """
    answers: dict[int, ReplicaStatus | FencedState] = {**statuses, **fenced}
    known = {
        number: (each.epoch, each.end, each.fenced)
        for number, each in answers.items()
        if number in state.replicas and each.identity == state.replicas[number].identity
    }
    epoch = max((max(begun + 1, sealed_to) for begun, _, sealed_to in known.values()), default=0)
    if epoch <= state.epoch:
        return None
    after = replace(state, epoch=epoch)
    if all(begun < state.epoch and sealed_to <= state.epoch + 1 for begun, _, sealed_to in known.values()):
        return UpdateRegister(after, f"elects in epoch {epoch}, to which a replica is fenced")
    missing = sorted(state.replicas.keys() - known.keys())
    if missing and not unclean:
        return Idle(f"the register is older than replicas {sorted(known)}; missing: {missing}")
    serving = sorted(number for number, each in statuses.items() if number in known and each.serves)
    if serving:
        return Idle(f"the register is older than replicas {sorted(known)}, and replicas {serving} still have a lease")
    most = max(log[:2] for log in known.values())
    longest = frozenset(number for number, log in known.items() if log[:2] == most)
    after = replace(after, in_sync=longest, set_epoch=state.set_epoch + 1, loss_epoch=epoch)
    return UpdateRegister(
        after, f"elects in epoch {epoch}: {STALE_REGISTER}; replicas {sorted(longest)} have the longest log"
    )
