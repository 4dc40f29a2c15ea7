"""One fault of a cluster, as a schedule of faults uses it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from tests.chaos.failover.loaded_cluster import LoadedCluster

Broken = TypeVar("Broken", bound=LoadedCluster)


@dataclass
class Breaking(ABC, Generic[Broken]):
    """A fault that is made, begun and ended once; `chance` chooses its victim.

    Attributes:
        name: its name in the verdict.
        spared: the names of hosts with another fault.
        target: the chosen victim, once the fault has begun.
        holds: how long it lasts, in seconds, at least and at most.
        loses: whether a disk's content is lost.
        spares_brokers: whether no broker, and no broker's host, is broken.
    """

    cluster: Broken
    chance: random.Random
    spared: set[str] = field(default_factory=set)
    target: str = ""

    name: ClassVar[str] = ""
    holds: ClassVar[tuple[float, float]] = (0.3, 3.0)
    loses: ClassVar[bool] = False
    spares_brokers: ClassVar[bool] = False

    @classmethod
    def is_possible(cls, cluster: Broken) -> bool:
        """Check whether the cluster has a possible victim."""
        return True

    @abstractmethod
    def begin(self) -> None:
        """Inject the fault."""

    @abstractmethod
    def end(self) -> None:
        """Heal the fault."""
