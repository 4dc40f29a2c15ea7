"""Plan a rolling restart: the next replica, and the conditions for its restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.elastic.change_steps import RestartReplica, TransferMaster, WaitStep
from raymq.cluster.elastic.observed_groups import ObservedGroup, ObservedReplica
from raymq.cluster.elastic.stall_timeout import STALL_TIMEOUT_SECONDS, StallTimeout

#: A process that has not ended these seconds after its stop request is killed.
FORCE_SECONDS: Final = 45.0
#: The most attempts in a row to hand over to another master; further ones are unlikely to succeed.
_MAX_HANDOVERS: Final = 3

Step = WaitStep | TransferMaster | RestartReplica


@dataclass(slots=True)
class _UnderWay:
    replica: ObservedReplica
    since: float
    by_force: bool = False


class RollingRestartPlanner:
    """The planner of one restart of all or some replicas, one after the other.

    In a group the other replicas come first, then the master, after it has handed over. The next replica is restarted
    only when the group of the previous one is complete and in sync again.
    """

    def __init__(self, names: Iterable[str], clock: Callable[[], float]) -> None:
        """Create a planner for the actors `names`; `clock` is a monotonic clock in seconds."""
        self._left = sorted(names)
        self._done: list[str] = []
        self._clock = clock
        self._under_way: _UnderWay | None = None
        self._handovers = 0
        self._patience = StallTimeout(clock)

    @property
    def left(self) -> list[str]:
        """Return the replicas that were not restarted, or whose groups are not in sync yet."""
        return [*([self._under_way.replica.name] if self._under_way else []), *self._left]

    @property
    def done(self) -> list[str]:
        """Return the restarted replicas in their order."""
        return list(self._done)

    def next(self, groups: Mapping[str, ObservedGroup]) -> Step | None:
        """Return the next step for the observed groups, None if all are restarted.

        Raises:
            BrokerUnavailable: a group does not become complete; the message names the replicas that are left.
        """
        if (now := self._under_way) is not None:
            group = groups.get(now.replica.group)
            same = None if group is None else group.replicas.get(now.replica.number)
            waited = self._clock() - now.since
            if same is not None and same.pid == now.replica.pid:
                if waited < FORCE_SECONDS or now.by_force:
                    return self._wait(f"{now.replica.name} has to stop")
                now.by_force = True
                return RestartReplica(now.replica.name, by_force=True)
            trouble = f"{now.replica.name} is gone" if group is None or same is None else group.trouble
            if trouble:
                return self._wait(trouble)
            self._done.append(now.replica.name)
            self._under_way = None
        if not self._left:
            return None
        group = groups.get(self._left[0].partition(".")[0])
        trouble = f"{self._left[0]} is gone" if group is None else group.trouble
        if group is None or trouble:
            return self._wait(trouble)
        self._patience.reset()
        return self._begin(group)

    def _begin(self, group: ObservedGroup) -> Step:
        waiting = [each for each in group.replicas.values() if each.name in self._left]
        replica = next((each for each in waiting if not each.is_master), waiting[0])
        others = sorted((group.in_sync or frozenset()) - {replica.number})
        if replica.is_master and others:
            self._handovers += 1
            if self._handovers > _MAX_HANDOVERS:
                raise self._stall_error(f"{group.name} has not been handed over in {_MAX_HANDOVERS} tries")
            return TransferMaster(group.name, others[0])
        self._handovers = 0
        self._left.remove(replica.name)
        self._under_way = _UnderWay(replica, self._clock())
        return RestartReplica(replica.name)

    def _wait(self, why: str) -> WaitStep:
        if self._patience.has_expired(why):
            raise self._stall_error(f"{why}, for {STALL_TIMEOUT_SECONDS:g} s")
        return WaitStep(why)

    def _stall_error(self, why: str) -> BrokerUnavailable:
        done = f"restarted: {', '.join(self._done)}; " if self._done else ""
        return BrokerUnavailable(
            "rolling restart",
            f"{why}; {done}not restarted: {', '.join(self.left)}",
            remedy="run it again when this is solved",
        )


def dry_run_steps(names: Sequence[str], groups: Mapping[str, ObservedGroup]) -> list[str]:
    """Return the descriptions of a restart's steps, assuming that each succeeds."""
    plan, steps, now = RollingRestartPlanner(names, lambda: 0.0), [], dict(groups)
    while (step := plan.next(now)) is not None:
        steps.append(str(step))
        now = {name: _after(step, group) for name, group in now.items()}
    return steps


def _after(step: Step, group: ObservedGroup) -> ObservedGroup:
    """Return the group after a step that has succeeded.

    A group that was waited for is then complete and in sync.
    """
    replicas = dict(group.replicas)
    if isinstance(step, TransferMaster) and step.group == group.name:
        replicas = {n: replace(each, is_master=n == step.replica, lag_bytes=0) for n, each in replicas.items()}
    elif isinstance(step, RestartReplica):
        replicas = {n: replace(e, pid=-1 - (e.pid or 0)) if e.name == step.name else e for n, e in replicas.items()}
    elif isinstance(step, WaitStep) and group.trouble:
        master = group.master
        first = min(replicas) if master is None else master.number
        replicas = {
            n: ObservedReplica(group.name, n, each.pid or 1, is_master=n == first, lag_bytes=0)
            for n, each in replicas.items()
        }
        is_replicated = group.in_sync is not None or len(replicas) > 1
        return ObservedGroup(group.name, replicas, frozenset(replicas) if is_replicated else None)
    return replace(group, replicas=replicas)
