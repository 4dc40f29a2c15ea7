"""The strategies by the names that a producer is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.sending.isolation.base import Isolation
from raymq.actors.sending.isolation.flag import FlagIsolation
from raymq.actors.sending.isolation.latency import LatencyIsolation
from raymq.actors.sending.isolation.least_failures import LeastFailures
from raymq.actors.sending.isolation.nothing import NoIsolation
from raymq.actors.sending.isolation.quarantine import QuarantineIsolation

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
