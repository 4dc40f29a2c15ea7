"""The expected queues of a store, and their comparison with the store."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from raymq.storage.errors import QueueNotFound
from raymq.storage.store import Store

TopicQueue = tuple[str, int]
GROUP = "readers"


@dataclass
class KnownQueue:
    """One queue since its topic was created, or created again."""

    #: All bodies that were ever stored, by offset.
    bodies: dict[int, bytes] = field(default_factory=dict)
    #: The lowest offset that readers saw; earlier messages have expired, and may return after a kill.
    low: int = 0
    committed: int = 0

    @property
    def end(self) -> int:
        """Return the next message's offset."""
        return max(self.bodies, default=-1) + 1


@dataclass
class KnownQueues:
    """All queues of a store, and its topics' settings."""

    queues: dict[TopicQueue, KnownQueue] = field(default_factory=dict)
    #: The number of queues of each topic, by its settings.
    settings: dict[str, int] = field(default_factory=dict)

    def of(self, key: TopicQueue) -> KnownQueue:
        """Return one queue; an empty one if it is unknown."""
        return self.queues.get(key) or KnownQueue()

    def stored(self, key: TopicQueue, bodies: Iterable[bytes]) -> None:
        """Record an append that returned."""
        queue = self.queues.setdefault(key, KnownQueue())
        queue.bodies.update(enumerate(bodies, queue.end))

    def deleted(self, topic: str) -> None:
        """Record a deletion that returned."""
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]
        self.settings.pop(topic, None)

    def flushed(self, now: KnownQueues) -> KnownQueues:
        """Return what is on disk after a flush of `now`, if this was there before; groups' offsets stay."""
        made = copy.deepcopy(now)
        for key, queue in made.queues.items():
            queue.committed = self.of(key).committed
        return made

    def check(self, store: Store) -> dict[TopicQueue, dict[int, bytes]]:
        """Check that the store has everything known once; return the content of each queue."""
        found = {}
        for key, known in self._with_unknown(store):
            low, end, found[key] = read(store, key)
            assert end == known.end, f"{key} ends at {end}, not {known.end}"
            assert low <= known.low, f"{key} begins at {low}, not {known.low}"
            _check_bodies(key, found[key], known)
            committed = store.consumer_offsets.get(GROUP, *key) or 0
            assert committed == known.committed, f"the group is at {committed} of {key}, not {known.committed}"
        assert settings_of(store) == self.settings
        return found

    def check_between(self, store: Store, sure: KnownQueues) -> KnownQueues:
        """Check after a power loss that the store has everything `sure`, a prefix of the rest, and nothing else.

        Returns:
            What is known from then on.
        """
        assert settings_of(store) == self.settings
        found = KnownQueues(settings=self.settings)
        for key, known in self._with_unknown(store):
            least = sure.of(key)
            low, end, bodies = read(store, key)
            assert least.end <= end <= known.end, f"{key} ends at {end}: {least.end} was sure, and {known.end} stored"
            assert low <= known.low, f"{key} begins at {low}, not {known.low}"
            _check_bodies(key, bodies, known)
            committed = store.consumer_offsets.get(GROUP, *key) or 0
            message = f"the group is at {committed} of {key}: {least.committed}..{known.committed}, end {end}"
            assert min(least.committed, end) <= committed <= min(known.committed, end), message
            if end:
                kept = {offset: body for offset, body in known.bodies.items() if offset < end}
                found.queues[key] = KnownQueue(kept, known.low, committed)
        return found

    def learn_lows(self, store: Store) -> None:
        """Record queue starts after a retention run."""
        for key, queue in self.queues.items():
            queue.low = max(queue.low, store.min_offset(*key))

    def _with_unknown(self, store: Store) -> list[tuple[TopicQueue, KnownQueue]]:
        """Return each queue that is known, or that the store has."""
        there = {(topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic)}
        return [(key, self.of(key)) for key in sorted(there | set(self.queues))]


def _check_bodies(key: TopicQueue, bodies: dict[int, bytes], known: KnownQueue) -> None:
    for offset, body in bodies.items():
        stored = known.bodies.get(offset, b"")
        assert body == stored, f"{key} has {body[:20]!r} at {offset}, not {stored[:20]!r}"


def read(store: Store, key: TopicQueue) -> tuple[int, int, dict[int, bytes]]:
    """Return a queue's start and end, and its bodies by offset."""
    bodies: dict[int, bytes] = {}
    try:
        low, end = store.min_offset(*key), store.max_offset(*key)
    except QueueNotFound:
        return 0, 0, bodies
    offset = low
    while offset < end:
        with store.read(*key, offset, 100) as lease:
            records = lease.messages()
        assert records, f"{key} has nothing at {offset}"
        for record in records:
            assert record.queue_offset == offset, f"{key} has {record.queue_offset} where {offset} is to be"
            bodies[offset] = record.body
            offset += 1
    return low, end, bodies


def settings_of(store: Store) -> dict[str, int]:
    """Return the number of queues of each topic, by its settings."""
    return {topic: config.read_queues for topic, config in store.topic_configs.all().items()}
