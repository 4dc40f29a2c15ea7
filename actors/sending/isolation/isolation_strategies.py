"""The isolation strategies by the names that a producer accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.sending.isolation.flag_isolation import FlagIsolation
from raymq.actors.sending.isolation.isolation import Isolation
from raymq.actors.sending.isolation.latency_isolation import LatencyIsolation
from raymq.actors.sending.isolation.least_failures_isolation import LeastFailuresIsolation
from raymq.actors.sending.isolation.no_isolation import NoIsolation
from raymq.actors.sending.isolation.quarantine_isolation import QuarantineIsolation

#: The strategies by the names that a producer accepts.
ISOLATION_STRATEGIES: Final[dict[str | None, Callable[[Callable[[], float]], Isolation]]] = {
    "latency": LatencyIsolation,
    "quarantine": QuarantineIsolation,
    "flag": FlagIsolation,
    "least-failures": LeastFailuresIsolation,
    None: lambda _: NoIsolation(),
}


def make_isolation(name: str | None, clock: Callable[[], float]) -> Isolation:
    """Return a new strategy by name; `clock` is in seconds.

    Raise KeyError for an unknown name.
    """
    return ISOLATION_STRATEGIES[name](clock)
