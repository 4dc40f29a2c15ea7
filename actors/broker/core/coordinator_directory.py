"""Track coordinators, and the brokers to query before reporting "there is none".

A coordinator is the one broker that keeps a series of writes or a stream's plans. It never changes. A second
coordinator for the same key must never be created: writes that the first one has committed would be committed again. A
new coordinator is created only if all brokers *that ever existed* report that they have a record of none; the first of
these brokers by name decides. Two rules ensure that really all brokers were queried:

- A broker stores the names of all brokers that it was ever informed of, and returns them on request. It reports "there
  is none" only when it is synced with each of them: that broker has a record of this one, and one of the two has copied
  the coordinators that the other had recorded.
- A request to create a coordinator lists the brokers that were queried. A broker that has a record of one more broker
  refuses the request.

So if two clients create a coordinator at the same time, either both query the same first broker, or one of them queries
a broker that has copied the other client's coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.storage.tables.coordinator_table import CoordinatorPage, CoordinatorTable, KnownBrokers, check_broker_name

#: How to exclude a broker that was removed for good.
REMEDY = "if that broker was removed for good, call Admin.forget_broker"


class CoordinatorDirectory:
    """The coordinators and the other brokers that one broker has recorded.

    Any thread may use it. All methods but `find` may block on the disk.
    """

    def __init__(self, name: str, coordinators: CoordinatorTable, brokers: KnownBrokers) -> None:
        self._name = name
        self._coordinators = coordinators
        self._brokers = brokers
        self._lock = threading.Lock()
        #: Whether the name servers have listed all brokers since this broker is in their routes.
        self._is_discovered = False

    @property
    def members(self) -> list[str]:
        """Return the sorted names of all known brokers, including this one."""
        return sorted({self._name, *self._brokers.known})

    def check_known(self, broker: str) -> None:
        """Raise BrokerUnavailable unless the broker exists or has existed.

        Records for a broker that never existed would be kept forever. A broker that was just started becomes known
        soon.
        """
        if broker != self._name and broker not in self._brokers.known:
            raise BrokerUnavailable(check_broker_name(broker), f"not known to {self._name} yet")

    def unsynced_brokers(self) -> list[str]:
        """Return the brokers with which this broker is not synced."""
        return [name for name, synced in sorted(self._brokers.known.items()) if not synced and name != self._name]

    def find(self, kind: str, key: str) -> str | None:
        """Return the coordinator of `key`, or None if there is none.

        None is returned only if this broker is synced with all others.

        Raises:
            BrokerUnavailable: the coordinator is not known here, and this broker is not synced with all others yet.
            InvalidInput: as `CoordinatorTable.find`.
        """
        coordinator = self._coordinators.find(kind, key)
        if coordinator is None:
            self._check_all_synced()
        return coordinator

    def remember(self, kind: str, key: str, coordinator: str, queried: Collection[str] | None = None) -> str:
        """Record the coordinator of `key`, and return the one in force.

        If a coordinator is recorded already, that one stays and is returned.

        Args:
            queried: the brokers that all reported that there is none, so that this broker decides. None: it was decided
                elsewhere.

        Raises:
            BrokerUnavailable: there are more brokers than were queried; they have to be queried first.
            InvalidInput, StoreFull, StoreFailed: as `CoordinatorTable.remember`.
        """
        with self._lock:
            if queried is not None and self._coordinators.find(kind, key) is None:
                self._check_all_synced()
                more = set(self.members).difference(queried)
                if more:
                    raise BrokerUnavailable(", ".join(sorted(more)), f"not yet asked for the coordinator of a {kind}")
            return self._coordinators.remember(kind, key, coordinator)

    def page(self, after: str, most: int) -> CoordinatorPage:
        """Return a page of coordinators, as `CoordinatorTable.page`."""
        with self._lock:
            return self._coordinators.page(after, most)

    def merge(self, entries: Iterable[tuple[str, str, str]], brokers: Iterable[str]) -> None:
        """Record the coordinators (kind, key, coordinator) and the brokers that another broker knows.

        As `CoordinatorTable.remember` and `KnownBrokers.add`.
        """
        with self._lock:
            for kind, key, coordinator in entries:
                self._coordinators.remember(kind, key, coordinator)
            self._brokers.add(set(brokers) - {self._name}, synced=False)

    def mark_synced(self, broker: str) -> None:
        """Record that this broker and `broker` know each other, as `KnownBrokers.add`.

        Either this one has copied the other's coordinators, or the other is about to copy them from here.
        """
        with self._lock:
            self._brokers.add({broker} - {self._name}, synced=True)

    def mark_discovered(self) -> None:
        """Record that the name servers listed all brokers, this one included.

        A broker that starts later finds this one in the routes and registers with it.
        """
        self._is_discovered = True

    def forget(self, broker: str) -> bool:
        """Forget a broker that was removed for good, so that it need not be queried.

        Return whether it was known. Raise InvalidInput if it is this broker.
        """
        if broker == self._name:
            raise InvalidInput("broker", "another broker, which was removed for good", broker)
        with self._lock:
            was_known = broker in self._brokers.known
            self._brokers.forget(broker)
            return was_known

    def count_own(self) -> int:
        """Count the streams and series of writes that this broker coordinates."""
        return self._coordinators.count_of(self._name)

    def _check_all_synced(self) -> None:
        unsynced_brokers = self.unsynced_brokers()
        if unsynced_brokers:
            reason = f"its coordinators are not copied to {self._name} yet"
            raise BrokerUnavailable(", ".join(unsynced_brokers), reason, remedy=REMEDY)
        if not self._is_discovered:
            raise BrokerUnavailable(self._name, "it has just started and does not know all other brokers yet")
