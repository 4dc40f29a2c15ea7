"""The strategies by the names that a producer is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.core.isolation.base import Isolation
from raymq.actors.core.isolation.flag import FlagIsolation
from raymq.actors.core.isolation.latency import LatencyIsolation
from raymq.actors.core.isolation.least_failures import LeastFailures
from raymq.actors.core.isolation.nothing import NoIsolation
from raymq.actors.core.isolation.quarantine import QuarantineIsolation

#: The strategies by the names that a producer is given.
STRATEGIES: Final[dict[str | None, Callable[[Callable[[], float]], Isolation]]] = {
    "latency": LatencyIsolation,
    "quarantine": QuarantineIsolation,
    "flag": FlagIsolation,
    "least-failures": LeastFailures,
    None: lambda _: NoIsolation(),
}


def make_isolation(name: str | None, clock: Callable[[], float]) -> Isolation:
    """The strategy of that name; `clock` in seconds. KeyError if there is none."""
    return STRATEGIES[name](clock)
