"""Model the expected queues and offsets of one copy of a store.

A copy has what it took as master, and what it received from its masters. A queue has the messages after its topic's
last deletion, at their offsets, as far back as the log goes; it ends after the last of them, also if all have expired.
The group's offset in it is the last one that was committed since that deletion.
"""

from __future__ import annotations

from typing import NamedTuple

from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import QueueNotFound
from raymq.storage.store import Store
from tests.store_replication import read_bodies

TOPICS = ("orders", "parts", "bills")
#: The topics that are never deleted, too.
_ALL = (*TOPICS, SCHEDULE_TOPIC)
#: The delay level of the messages in queue 0 of the schedule topic.
LEVEL = 1
GROUP = "readers"


class Message(NamedTuple):
    """One message of queue 0 of its topic; the log ended at `end` after it."""

    topic: str
    offset: int
    body: bytes
    end: int


class Deletion(NamedTuple):
    """A deletion of a topic by event number `sequence`, when the log ended at `place`."""

    topic: str
    place: int
    sequence: int


class Commit(NamedTuple):
    """The group's offset in queue 0 of a topic, committed by event number `sequence`."""

    topic: str
    offset: int
    sequence: int


class History:
    """The history of one copy.

    Attributes:
        messages: in order of arrival.
        deletions: all deletions, also those of expired messages.
        commits: all commits, also those before a deletion.
        pending: what a master has begun, and a kill may have interrupted; of a message the log's end before it.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.deletions: list[Deletion] = []
        self.commits: list[Commit] = []
        self.pending: Message | Deletion | Commit | None = None

    def begin_message(self, topic: str, body: bytes, log_end: int) -> None:
        """Begin to store a message."""
        self.pending = Message(topic, self.end(topic), body, log_end)

    def settle(self, store: Store) -> None:
        """Keep what was begun if the store has it."""
        pending, self.pending = self.pending, None
        if isinstance(pending, Message):
            if _end(store, pending.topic) > pending.offset:
                self.messages.append(pending._replace(end=store.max_physical_offset))
        elif pending is not None and pending.sequence <= store.journal.last:
            if isinstance(pending, Deletion):
                self.deletions.append(pending)
            else:
                self.commits.append(pending)

    def hear(self, master: History, end: StreamPosition) -> None:
        """Take over the master's log and events up to `end`."""
        self.messages = [each for each in master.messages if each.end <= end.offset]
        self.deletions = [each for each in master.deletions if each.sequence <= end.sequence]
        self.commits = [each for each in master.commits if each.sequence <= end.sequence]

    def become_leader(self, end: StreamPosition) -> None:
        """Let nothing refer to log after `end`, where the stream ended when the copy was elected."""
        self.deletions = [each._replace(place=min(each.place, end.offset)) for each in self.deletions]
        for topic in TOPICS:
            limit = self.end(topic)
            if self._committed(topic) > limit:
                self.commits.append(Commit(topic, limit, end.sequence + 1))

    def check(self, store: Store) -> None:
        """Check that the store has exactly these messages, queue ends and offsets."""
        found = {
            topic: dict(enumerate(bodies, store.min_offset(topic, queue_id)))
            for (topic, queue_id), bodies in read_bodies(store).items()
            if bodies
        }
        log_min = store.min_physical_offset
        for topic in _ALL:
            must = {each.offset: each.body for each in self._alive(topic) if each.end > log_min}
            has = found.get(topic, {})
            about = self._about(topic, log_min)
            assert has == must, f"{topic} has {_short(has)}, not {_short(must)}; {about}"
            has_end, end = _end(store, topic), self.end(topic)
            assert has_end == end, f"{topic} ends at {has_end}, not {end}; {about}"
            has_offset, offset = store.consumer_offsets.get(GROUP, topic, 0) or 0, self._committed(topic)
            assert has_offset == offset, f"the group is at {has_offset} of {topic}, not {offset}; {about}"

    def check_delivered(self, store: Store) -> None:
        """Check that the log has the copies of all delayed messages that count as delivered."""
        delivered = set(range(store.delay_offsets.get(LEVEL) or 0))
        copied = {int(each.body.split()[1]) for each in self.messages if each.body.split()[1].isdigit()}
        assert delivered <= copied, f"the copies of {delivered - copied} are lost"
        assert store.delay_offsets.log_end <= store.max_physical_offset

    def _alive(self, topic: str) -> list[Message]:
        """Return the messages after the topic's last deletion, including expired ones."""
        deleted = max((each.place for each in self.deletions if each.topic == topic), default=-1)
        return [each for each in self.messages if each.topic == topic and each.end > deleted]

    def end(self, topic: str) -> int:
        """Return the offset of the topic's next message."""
        return max((each.offset + 1 for each in self._alive(topic)), default=0)

    def _committed(self, topic: str) -> int:
        deleted = max((each.sequence for each in self.deletions if each.topic == topic), default=0)
        since = [each.offset for each in self.commits if each.topic == topic and each.sequence > deleted]
        return since[-1] if since else 0

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
