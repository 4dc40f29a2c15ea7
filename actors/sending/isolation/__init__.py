"""Failure isolation: strategies that rank brokers by their recent failures.

What is in it, in the order to read it:
    isolation: the protocol of a strategy.
    isolation_strategies: the strategies by name.
    flag_isolation, latency_isolation, least_failures_isolation, no_isolation, quarantine_isolation: one strategy each.
    synchronized_isolation: a strategy for several threads.
"""

from __future__ import annotations

from raymq.actors.sending.isolation.flag_isolation import FlagIsolation
from raymq.actors.sending.isolation.isolation import Isolation, TryOutcome
from raymq.actors.sending.isolation.isolation_strategies import ISOLATION_STRATEGIES, make_isolation
from raymq.actors.sending.isolation.latency_isolation import LatencyIsolation
from raymq.actors.sending.isolation.least_failures_isolation import LeastFailuresIsolation
from raymq.actors.sending.isolation.no_isolation import NoIsolation
from raymq.actors.sending.isolation.quarantine_isolation import QuarantineIsolation

__all__ = [
    "ISOLATION_STRATEGIES",
    "FlagIsolation",
    "Isolation",
    "LatencyIsolation",
    "LeastFailuresIsolation",
    "NoIsolation",
    "QuarantineIsolation",
    "TryOutcome",
    "make_isolation",
]
