"""Failure isolation: strategies that learn which brokers misbehave and say which to prefer. A file each."""

from __future__ import annotations

from raymq.actors.core.isolation.base import Isolation, Outcome
from raymq.actors.core.isolation.flag import FlagIsolation
from raymq.actors.core.isolation.latency import LatencyIsolation
from raymq.actors.core.isolation.least_failures import LeastFailures
from raymq.actors.core.isolation.nothing import NoIsolation
from raymq.actors.core.isolation.quarantine import QuarantineIsolation
from raymq.actors.core.isolation.strategies import STRATEGIES, make_isolation

__all__ = [
    "STRATEGIES",
    "FlagIsolation",
    "Isolation",
    "LatencyIsolation",
    "LeastFailures",
    "NoIsolation",
    "Outcome",
    "QuarantineIsolation",
    "make_isolation",
]
