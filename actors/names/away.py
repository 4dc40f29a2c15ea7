"""Brokers that have left the routes, and what they had: so that "away" is not taken for "no such topic".

In memory, for `AWAY_SECONDS`. Only our own clients are told of them; RocketMQ's see the living ones alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from raymq.actors.protocol import AWAY_SECONDS, PERM_WRITE, AwayQueues, QueueData


@dataclass(frozen=True, slots=True)
class _Away:
    cluster: str
    since: float
    topics: dict[str, QueueData]


@dataclass(slots=True)
class AwayBrokers:
    """By name, who left first in front. `clock` as that of the route table."""

    clock: Callable[[], float]
    #: Of all of them.
    topics: int = 0
    _brokers: dict[str, _Away] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._brokers)

    def __contains__(self, broker: str) -> bool:
        return broker in self._brokers

    def left(self, broker: str, cluster: str, topics: Mapping[str, QueueData], *, read_only: bool) -> None:
        """The last replica of a broker has gone; `read_only`: its write permission is wiped."""
        self.back(broker)
        kept = {
            name: replace(data, perm=data.perm & ~PERM_WRITE) if read_only else data for name, data in topics.items()
        }
        self._brokers[broker] = _Away(cluster, self.clock(), kept)
        self.topics += len(kept)

    def back(self, broker: str) -> None:
        """It says itself what it has."""
        known = self._brokers.pop(broker, None)
        if known is not None:
            self.topics -= len(known.topics)

    def keep_at_most(self, brokers: int, topics: int) -> None:
        """Forget who left first, and who has been away for too long."""
        now = self.clock()
        for broker, away in list(self._brokers.items()):
            if len(self) <= brokers and self.topics <= topics and now - away.since < AWAY_SECONDS:
                return
            self.back(broker)

    def deleted(self, topic: str, cluster: str | None) -> None:
        """The topic is not expected back, everywhere or in a cluster."""
        for away in self._brokers.values():
            if topic in away.topics and cluster in (None, away.cluster):
                del away.topics[topic]
                self.topics -= 1

    def of(self, topic: str) -> tuple[AwayQueues, ...]:
        """What they had of a topic, by the brokers' names."""
        now = self.clock()
        found = [
            AwayQueues(away.topics[topic], now - away.since)
            for away in self._brokers.values()
            if topic in away.topics and now - away.since < AWAY_SECONDS
        ]
        return tuple(sorted(found, key=lambda each: each.data.broker))

    def validate(self) -> None:
        """Invariants, asserted after every unit test."""
        assert self.topics == sum(len(away.topics) for away in self._brokers.values())
        since = [away.since for away in self._brokers.values()]
        assert since == sorted(since)
