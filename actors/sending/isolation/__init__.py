"""Failure isolation: strategies that learn which brokers misbehave and say which to prefer. A file each."""

from __future__ import annotations

from raymq.actors.sending.isolation.base import Isolation, Outcome
from raymq.actors.sending.isolation.flag import FlagIsolation
from raymq.actors.sending.isolation.latency import LatencyIsolation
from raymq.actors.sending.isolation.least_failures import LeastFailures
from raymq.actors.sending.isolation.nothing import NoIsolation
from raymq.actors.sending.isolation.quarantine import QuarantineIsolation
from raymq.actors.sending.isolation.strategies import STRATEGIES, make_isolation

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
