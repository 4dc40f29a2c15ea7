"""The interface by which connections that reach Ray change the brokers of a cluster.

The package `cluster` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from raymq.client.results import BrokerChange

#: Called with each step in words, before the step.
ReportStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """How to drain a broker group.

    Attributes:
        remove: remove the group when it is empty.
        lose: drain or remove it even if data that never expires is lost: dead letters, the progress of streams and
            series of writes, topics that only this group has.
        without: consumer groups whose messages are not waited for.
    """

    remove: bool = False
    lose: bool = False
    without: frozenset[str] = frozenset()


class ClusterChanges(Protocol):
    """The changes of a cluster's brokers.

    Each change may be interrupted at any moment, also by a kill, and called again: it continues with the remaining
    steps.
    """

    async def restart(self, broker: str | None, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """See `Admin.restart`."""

    async def add_replica(self, group: str, host: str | None, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """See `Admin.add_broker`."""

    async def move(self, group: str, replica: int, host: str, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """See `Admin.move`."""

    async def remove_replica(self, name: str, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """See `Admin.remove_broker`."""

    async def add_group(
        self,
        name: str | None,
        replicas: int | None,
        host: str | None,
        topics: Sequence[str] | None,
        report: ReportStep,
        *,
        dry_run: bool,
    ) -> BrokerChange:
        """See `Admin.add_broker`."""

    async def drain(
        self, group: str, options: DrainOptions, report: ReportStep, *, cancel: bool = False, dry_run: bool
    ) -> BrokerChange:
        """See `Admin.drain`."""
