"""What a name server knows: which brokers live, and which topics they have. In memory, no I/O, injected clock.

Everything is learned from the brokers' registrations, which are their heartbeats too; a name server that starts empty
knows all again one heartbeat later. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raymq.actors.errors import ServerBusy, TopicNotFound
from raymq.actors.protocol import ClusterView, QueueData, TopicRoute

#: Brokers register this often,
HEARTBEAT_SECONDS = 1.0
#: and leave the routes after this long without: a dead broker leaves the routes in under 5 s.
EXPIRY_SECONDS = 4.0

#: A name server younger than this does not say "no such topic": the topic's broker may not have registered yet.
LEARNING_SECONDS = 2 * HEARTBEAT_SECONDS


@dataclass(slots=True)
class _Registration:
    cluster: str
    address: str
    topics: dict[str, QueueData]
    last_seen: float


@dataclass(slots=True)
class RouteTable:
    """The registrations of all replicas, by broker name and replica id."""

    clock: Callable[[], float]
    expiry_seconds: float = EXPIRY_SECONDS
    _brokers: dict[str, dict[int, _Registration]] = field(default_factory=dict)
    _started: float = 0.0

    def __post_init__(self) -> None:
        self._started = self.clock()

    def register(self, cluster: str, broker: str, replica: int, address: str, topics: Mapping[str, QueueData]) -> None:
        """A broker's heartbeat: all that it has, replacing what it said before."""
        replicas = self._brokers.setdefault(broker, {})
        replicas[replica] = _Registration(cluster, address, dict(topics), self.clock())

    def unregister(self, broker: str, replica: int) -> None:
        """A broker stops in good order."""
        replicas = self._brokers.get(broker, {})
        replicas.pop(replica, None)
        if not replicas:
            self._brokers.pop(broker, None)

    def expire(self) -> list[str]:
        """Forget who was silent for too long; returns their names."""
        limit = self.clock() - self.expiry_seconds
        dead = [
            (broker, replica)
            for broker, replicas in self._brokers.items()
            for replica, registration in replicas.items()
            if registration.last_seen < limit
        ]
        for broker, replica in dead:
            self.unregister(broker, replica)
        return [broker for broker, _ in dead]

    def route(self, topic: str) -> TopicRoute:
        """Where `topic` lives.

        Raises:
            TopicNotFound: no living broker has it.
            ServerBusy: nor could it be known already: this name server has only just started.
        """
        queues: list[QueueData] = []
        addresses: dict[str, str] = {}
        for broker, replicas in sorted(self._brokers.items()):
            master = min(replicas)
            data = replicas[master].topics.get(topic)
            if data is not None:
                queues.append(data)
                addresses[broker] = replicas[master].address
        if not queues and self.clock() - self._started < LEARNING_SECONDS:
            raise ServerBusy("the name server has just started and has not heard from all brokers yet")
        if not queues:
            raise TopicNotFound(f"No topic route info in name server for the topic: {topic}")
        return TopicRoute(topic, tuple(queues), addresses)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted({t for replicas in self._brokers.values() for r in replicas.values() for t in r.topics})

    def delete_topic(self, topic: str) -> None:
        """Forget a topic at once; the brokers' next heartbeats no longer name it."""
        for replicas in self._brokers.values():
            for registration in replicas.values():
                registration.topics.pop(topic, None)

    def view(self) -> ClusterView:
        """All living brokers."""
        return ClusterView(
            {
                broker: (next(iter(replicas.values())).cluster, {i: r.address for i, r in sorted(replicas.items())})
                for broker, replicas in sorted(self._brokers.items())
            }
        )

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        assert all(self._brokers.values()), "a broker without a replica stays listed"
        for replicas in self._brokers.values():
            assert len({registration.cluster for registration in replicas.values()}) == 1
