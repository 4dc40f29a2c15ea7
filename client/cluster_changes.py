"""What changes the brokers of a cluster: known to connections that reach its actors, and carried out in rooms above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from raymq.client.results import BrokerChange

#: Is told each step in words, before it is done.
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DrainWish:
    """How a group is to be drained.

    Attributes:
        remove: it goes when it is empty.
        lose: also what stays for ever: dead letters, the progress of streams and series of writes, topics of its own.
        without: consumer groups whose messages are not waited for.
    """

    remove: bool = False
    lose: bool = False
    without: frozenset[str] = frozenset()


class ClusterChanges(Protocol):
    """Each may be ended at any moment, by a kill too, and asked for again: it goes on with what is left."""

    async def restart(self, broker: str | None, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.restart`."""

    async def add_replica(self, group: str, host: str | None, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.add_broker`."""

    async def move(self, group: str, replica: int, host: str, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.move`."""

    async def remove_replica(self, name: str, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.remove_broker`."""

    async def add_group(
        self,
        name: str | None,
        replicas: int | None,
        host: str | None,
        topics: Sequence[str] | None,
        told: Told,
        *,
        dry_run: bool,
    ) -> BrokerChange:
        """See `Admin.add_broker`."""

    async def drain(
        self, group: str, wanted: DrainWish, told: Told, *, cancel: bool = False, dry_run: bool
    ) -> BrokerChange:
        """See `Admin.drain`."""
