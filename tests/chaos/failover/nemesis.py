"""Inject faults by a schedule made from a seed, singly and in pairs; heal each and wait for recovery."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.failover.breaking import Breaking
from tests.chaos.failover.faults import WEIGHTS
from tests.chaos.failover.loaded_cluster import LoadedCluster
from tests.chaos.failover.recorded import Fault
from tests.chaos.failover.slowdown_sampler import SlowdownSampler

#: The share of faults that come in pairs.
PAIR_SHARE: Final = 0.25
#: A cluster that is not well so long after a fault's end counts as stuck.
PATIENCE_SECONDS: Final = 60.0


@dataclass
class Nemesis:
    """Inject faults into one cluster. The same seed chooses the same faults in the same order.

    Attributes:
        faults: all injected faults.
        together: a fault that accompanies every other one, where allowed.
        waits: the recovery time after each fault's end.
        slowdowns: the machine's slowdown from each fault's beginning to its recovery.
        stuck: faults without a recovery.
    """

    cluster: LoadedCluster
    seed: int
    kinds: Sequence[type[Breaking[Any]]] = tuple(WEIGHTS)
    weights: Mapping[type[Breaking[Any]], float] = field(default_factory=lambda: WEIGHTS)
    say: Callable[[str], None] = lambda _line: None
    pair_share: float = PAIR_SHARE
    together: type[Breaking[Any]] | None = None
    patience_seconds: float = PATIENCE_SECONDS
    faults: list[Fault] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    crowding: SlowdownSampler = field(default_factory=SlowdownSampler)
    _turn: int = 0

    def turn(self) -> None:
        """Inject one or two faults, hold and heal them, and wait for recovery."""
        self._turn += 1
        chance = random.Random(f"{self.seed} {self._turn}")
        possible = [kind for kind in self.kinds if kind.is_possible(self.cluster)]
        weights = [self.weights.get(kind, 1.0) for kind in possible]
        kinds = chance.choices(possible, weights)
        if self.together is not None and self._go_together(self.together, kinds[0]):
            kinds.append(self.together)
        elif chance.random() < self.pair_share:
            kinds += [kind for kind in chance.choices(possible, weights) if self._go_together(kind, kinds[0])]
        spared: set[str] = set()
        self._break([kind(self.cluster, random.Random(f"{chance.random()}"), spared) for kind in kinds], chance)

    def _go_together(self, one: type[Breaking[Any]], other: type[Breaking[Any]]) -> bool:
        """Check that the pair loses nothing promised: neither the last copy nor a majority of the keepers."""
        if one.loses and other.loses:
            return False
        if not (one.loses or other.loses) or self.cluster.fewest_copies > 1:
            return True
        return one.spares_brokers or other.spares_brokers

    def _break(self, breakings: list[Breaking[Any]], chance: random.Random) -> None:
        began: list[float] = []
        for breaking in breakings:
            began.append(time.monotonic())
            breaking.begin()
            self.say(f"{self._turn:4d}  {breaking.name}: {breaking.target}")
            if len(breakings) > 1:
                time.sleep(chance.uniform(0.0, 1.0))
        time.sleep(max(chance.uniform(*each.holds) for each in breakings))
        for breaking in reversed(breakings):
            breaking.end()
        healed = time.monotonic()
        breakings.sort(key=lambda each: each.name)
        name, target = (" + ".join(getattr(each, what) for each in breakings) for what in ("name", "target"))
        fault = Fault(name, target, began[0], healed)
        self.faults.append(fault)
        self._wait_until_well(fault)

    def _wait_until_well(self, fault: Fault) -> None:
        end = fault.healed + self.patience_seconds
        while not self.cluster.is_well(fault.healed):
            if time.monotonic() > end:
                self.stuck.append(f"{fault.name} ({fault.target}): {self.cluster.why_not_well(fault.healed)}")
                self.say(f"      still not well: {self.stuck[-1]}")
                self.cluster.tell_where()
                self.cluster.mend()
                break
            time.sleep(0.1)
        now = time.monotonic()
        self.waits.append(now - fault.healed)
        self.slowdowns.append(self.crowding.slowdown(fault.began, now))
