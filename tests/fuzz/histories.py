"""The expected queues of one copy of a store: a model of its messages and its topics' deletions.

A copy has what it took as master, and what it received from its masters. A queue has the messages after its topic's
last deletion, at their offsets, as far back as the log goes; it ends after the last of them, also if all have expired.
"""

from __future__ import annotations

from typing import NamedTuple

from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.errors import QueueNotFound
from raymq.storage.store import Store
from tests.store_replication import read_bodies

TOPICS = ("orders", "parts", "bills")


class Message(NamedTuple):
    """One message of queue 0 of its topic; the log ended at `end` after it."""

    topic: str
    offset: int
    body: bytes
    end: int


class Deletion(NamedTuple):
    """A deletion of a topic when the log ended at `place`.

    State changes contain it from number `since` on, and up to `until` if it was refused.
    """

    topic: str
    place: int
    since: int = 0
    until: int | None = None


class History:
    """The history of one copy.

    Attributes:
        messages: in order of arrival.
        deletions: all deletions, also those of expired messages.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.deletions: list[Deletion] = []

    def hear(self, master: History, end: StreamPosition) -> None:
        """Take over the master's log and changes up to `end`; with 0 changes the deletions stay unknown."""
        self.messages = [message for message in master.messages if message.end <= end.offset]
        known = end.sequence
        if known:
            heard = [each for each in master.deletions if each.since <= known < (each.until or known + 1)]
            self.deletions = [Deletion(each.topic, each.place) for each in heard]

    def cut(self, end: int) -> None:
        """Truncate the log."""
        self.messages = [message for message in self.messages if message.end <= end]

    def settle(self) -> None:
        """Step down as master: refused deletions are dropped, and change numbers lose their meaning."""
        self.deletions = [Deletion(each.topic, each.place) for each in self.deletions if each.until is None]

    def check(self, store: Store) -> None:
        """Check that the store has exactly these messages and queue ends."""
        found = {
            topic: dict(enumerate(bodies, store.min_offset(topic, queue_id)))
            for (topic, queue_id), bodies in read_bodies(store).items()
            if bodies
        }
        ends = {topic: _end(store, topic) for topic in TOPICS}
        log_min = store.min_physical_offset
        for topic in TOPICS:
            messages = self._alive(topic)
            must = {message.offset: message.body for message in messages if message.end > log_min}
            has = found.get(topic, {})
            assert has == must, f"{topic} has {_short(has)}, not {_short(must)}; {self._about(topic, log_min)}"
            end = max((message.offset + 1 for message in messages), default=0)
            assert ends[topic] == end, f"{topic} ends at {ends[topic]}, not {end}; {self._about(topic, log_min)}"

    def _alive(self, topic: str) -> list[Message]:
        """Return the messages after the topic's last deletion, including expired ones."""
        places = [each.place for each in self.deletions if each.topic == topic and each.until is None]
        deleted = max(places, default=-1)
        return [message for message in self.messages if message.topic == topic and message.end > deleted]

    def _about(self, topic: str, log_min: int) -> str:
        deletions = [each for each in self.deletions if each.topic == topic]
        return f"the log begins at {log_min}, and it was deleted: {deletions[-4:]}"


def _end(store: Store, topic: str) -> int:
    try:
        return store.max_offset(topic, 0, written=True)
    except QueueNotFound:
        return 0


def _short(bodies: dict[int, bytes]) -> dict[int, bytes]:
    """Return only the numbers with which bodies begin."""
    return {offset: body.split()[0] for offset, body in bodies.items()}
