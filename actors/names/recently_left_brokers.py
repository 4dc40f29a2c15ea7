"""Remember brokers that have left the routes, and their topics.

So a client can tell a topic whose brokers are away from one that does not exist. The data is in memory, for
`RECENTLY_LEFT_SECONDS`. Only RayMQ's clients receive it; RocketMQ's clients see registered brokers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from raymq.actors.protocol import PERM_WRITE, RECENTLY_LEFT_SECONDS, QueueData, RecentlyLeftQueues


@dataclass(frozen=True, slots=True)
class _LeftBroker:
    cluster: str
    address: str
    since: float
    topics: dict[str, QueueData]


@dataclass(slots=True)
class RecentlyLeftBrokers:
    """Brokers by name, in the order in which they left.

    `clock` is the clock of the route table.
    """

    clock: Callable[[], float]
    #: The number of topics of all these brokers.
    topics: int = 0
    _brokers: dict[str, _LeftBroker] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._brokers)

    def __contains__(self, broker: str) -> bool:
        return broker in self._brokers

    def add(self, broker: str, cluster: str, address: str, topics: Mapping[str, QueueData], *, read_only: bool) -> None:
        """Add a broker whose last replica has left the routes.

        `address` is where that replica listened. `read_only`: its write permission was wiped.
        """
        self.remove(broker)
        retained = {
            name: replace(data, perm=data.perm & ~PERM_WRITE) if read_only else data for name, data in topics.items()
        }
        self._brokers[broker] = _LeftBroker(cluster, address, self.clock(), retained)
        self.topics += len(retained)

    def remove(self, broker: str) -> None:
        """Remove a broker, which is registered again or gone for good."""
        known = self._brokers.pop(broker, None)
        if known is not None:
            self.topics -= len(known.topics)

    def keep_at_most(self, brokers: int, topics: int) -> None:
        """Remove brokers that left first until the limits hold, and those away for too long."""
        now = self.clock()
        for broker, away in list(self._brokers.items()):
            if len(self) <= brokers and self.topics <= topics and now - away.since < RECENTLY_LEFT_SECONDS:
                return
            self.remove(broker)

    def deleted(self, topic: str, cluster: str | None) -> None:
        """Remove a deleted topic, everywhere or in one cluster."""
        for away in self._brokers.values():
            if topic in away.topics and cluster in (None, away.cluster):
                del away.topics[topic]
                self.topics -= 1

    def addresses(self) -> dict[str, str]:
        """Return where these brokers listened, by name."""
        now = self.clock()
        return {
            broker: away.address
            for broker, away in sorted(self._brokers.items())
            if now - away.since < RECENTLY_LEFT_SECONDS
        }

    def of(self, topic: str) -> tuple[RecentlyLeftQueues, ...]:
        """Return the queues of a topic on these brokers, sorted by broker name."""
        now = self.clock()
        found = [
            RecentlyLeftQueues(away.topics[topic], now - away.since)
            for away in self._brokers.values()
            if topic in away.topics and now - away.since < RECENTLY_LEFT_SECONDS
        ]
        return tuple(sorted(found, key=lambda each: each.data.broker))
