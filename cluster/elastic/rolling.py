"""A rolling restart: which replica is next, and what has to be so before it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.elastic.patience import PATIENCE_SECONDS, Patience
from raymq.cluster.elastic.seen import GroupSeen, ReplicaSeen
from raymq.cluster.elastic.steps import HandOver, Restart, Wait

#: A process that has not ended so long after it was asked to is killed.
FORCE_SECONDS: Final = 45.0
#: Who does not become master in so many tries in a row will not in the next one.
_MOST_HANDOVERS: Final = 3

Step = Wait | HandOver | Restart


@dataclass(slots=True)
class _UnderWay:
    replica: ReplicaSeen
    since: float
    by_force: bool = False


class RollingRestart:
    """One restart of all replicas, or of some, one after the other: replicas first, then the master, which has handed
    over before. Nobody is next before the group of the one before is whole again.
    """

    def __init__(self, names: Iterable[str], clock: Callable[[], float]) -> None:
        """`names`: of the actors; `clock`: seconds that do not go back."""
        self._left = sorted(names)
        self._done: list[str] = []
        self._clock = clock
        self._under_way: _UnderWay | None = None
        self._handovers = 0
        self._patience = Patience(clock)

    @property
    def left(self) -> list[str]:
        """Those that were not restarted, or whose group is not whole yet."""
        return [*([self._under_way.replica.name] if self._under_way else []), *self._left]

    @property
    def done(self) -> list[str]:
        """Those that were, in their order."""
        return list(self._done)

    def next(self, groups: Mapping[str, GroupSeen]) -> Step | None:
        """What is to be done, by what is seen now; None: nothing more.

        Raises:
            BrokerUnavailable: a group does not become whole; it says who is left.
        """
        if (now := self._under_way) is not None:
            group = groups.get(now.replica.group)
            same = None if group is None else group.replicas.get(now.replica.number)
            waited = self._clock() - now.since
            if same is not None and same.pid == now.replica.pid:
                if waited < FORCE_SECONDS or now.by_force:
                    return self._wait(f"{now.replica.name} is to stop")
                now.by_force = True
                return Restart(now.replica.name, by_force=True)
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
        self._patience.rest()
        return self._begin(group)

    def _begin(self, group: GroupSeen) -> Step:
        wanted = [each for each in group.replicas.values() if each.name in self._left]
        replica = next((each for each in wanted if not each.is_master), wanted[0])
        others = sorted((group.in_sync or frozenset()) - {replica.number})
        if replica.is_master and others:
            self._handovers += 1
            if self._handovers > _MOST_HANDOVERS:
                raise self._given_up(f"{group.name} has not been handed over in {_MOST_HANDOVERS} tries")
            return HandOver(group.name, others[0])
        self._handovers = 0
        self._left.remove(replica.name)
        self._under_way = _UnderWay(replica, self._clock())
        return Restart(replica.name)

    def _wait(self, why: str) -> Wait:
        if self._patience.is_over(why):
            raise self._given_up(f"{why}, and has been for {PATIENCE_SECONDS:g} s")
        return Wait(why)

    def _given_up(self, why: str) -> BrokerUnavailable:
        done = f"restarted were {', '.join(self._done)}; " if self._done else ""
        return BrokerUnavailable(
            "rolling restart", f"{why}; {done}left are {', '.join(self.left)}", remedy="run it again when that is right"
        )


def rehearsed(names: Sequence[str], groups: Mapping[str, GroupSeen]) -> list[str]:
    """The steps of a restart in words, if each of them succeeds."""
    plan, told, now = RollingRestart(names, lambda: 0.0), [], dict(groups)
    while (step := plan.next(now)) is not None:
        told.append(str(step))
        now = {name: _after(step, group) for name, group in now.items()}
    return told


def _after(step: Step, group: GroupSeen) -> GroupSeen:
    """The group when a step has done what it is for; one that was waited for is whole then."""
    replicas = dict(group.replicas)
    if isinstance(step, HandOver) and step.group == group.name:
        replicas = {n: replace(each, is_master=n == step.replica, lag_bytes=0) for n, each in replicas.items()}
    elif isinstance(step, Restart):
        replicas = {n: replace(e, pid=-1 - (e.pid or 0)) if e.name == step.name else e for n, e in replicas.items()}
    elif isinstance(step, Wait) and group.trouble:
        master = group.master
        first = min(replicas) if master is None else master.number
        replicas = {
            n: ReplicaSeen(group.name, n, each.pid or 1, is_master=n == first, lag_bytes=0)
            for n, each in replicas.items()
        }
        is_replicated = group.in_sync is not None or len(replicas) > 1
        return GroupSeen(group.name, replicas, frozenset(replicas) if is_replicated else None)
    return replace(group, replicas=replicas)
