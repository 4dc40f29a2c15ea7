"""The plan of one batch of a stream: the offset ranges that the batch reads.

The brokers store a plan as opaque bytes; this module encodes and decodes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.client.bulk.batch_plans import BrokerTopic

#: The version of the encoding without and with skipped messages. Other versions are refused.
_FORM: Final = 2
_FORM_WITH_SKIPPED: Final = 3
#: Identifies the messages that the offsets of a topic on a broker belong to: the topic's id on that broker, and the
#: broker's recovery epoch.
TopicEpoch = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end offsets of a run that stops by itself.

    They are the ends of the queues at the time when the first batch of the run was planned.
    """

    run: str
    ends: Mapping[MessageQueue, int]


class SkippedCount(NamedTuple):
    """The messages that a stream has skipped in one queue since the stream began.

    Attributes:
        messages: how many stored messages were skipped unread; messages of a deleted topic are not counted.
        reason: the reason for the latest skip.
    """

    messages: int
    reason: str


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The messages of one batch.

    Attributes:
        ranges: the first offset and the offset after the last message, of each queue. Empty ranges are included,
            because the next batch continues at their ends.
        origins: the topic id and recovery epoch that the offsets belong to, by topic and broker.
        goal: the end offsets of the run that the batch was planned in, None if that run does not stop by itself.
        session: the start of the query in which the batch was planned, by Spark's id.
        skipped: the messages that the stream has skipped up to this batch, by queue.
    """

    ranges: Mapping[MessageQueue, tuple[int, int]]
    origins: Mapping[BrokerTopic, TopicEpoch] = field(default_factory=dict)
    goal: RunEnd | None = None
    session: str = ""
    skipped: Mapping[MessageQueue, SkippedCount] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """Return the topics that the stream reads."""
        return {topic for topic, _ in self.origins}

    def is_last_of(self, run: str) -> bool:
        """Return True if no messages of the named run are left after this batch."""
        if self.goal is None or self.goal.run != run:
            return False
        return all(self.ranges[queue][1] >= end for queue, end in self.goal.ends.items() if queue in self.ranges)

    def pack(self) -> bytes:
        """Encode the plan as bytes for `unpack`."""
        goal = None if self.goal is None else [self.goal.run, _nested((q, [end]) for q, end in self.goal.ends.items())]
        origins = [[*origin, *identity] for origin, identity in self.origins.items()]
        values = [_nested(self.ranges.items()), origins, goal, self.session]
        if self.skipped:
            packed: bytes = msgpack.packb([_FORM_WITH_SKIPPED, *values, _nested(self.skipped.items())])
        else:
            packed = msgpack.packb([_FORM, *values])
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> BatchPlan:
        """Decode the bytes that `pack` returned.

        Raise ProtocolError if they are not a plan, or were written by an incompatible version of this program.
        """
        try:
            form, ranges, origins, goal, session, *more = msgpack.unpackb(packed)
            if (form, len(more)) not in ((_FORM, 0), (_FORM_WITH_SKIPPED, 1)):
                raise ValueError(f"its form is {form!r:.40}")
            return cls(
                {queue: (_offset(start), _offset(end)) for queue, (start, end) in _flat(ranges)},
                {(topic, broker): (str(topic_id), _offset(epoch)) for topic, broker, topic_id, epoch in origins},
                None
                if goal is None
                else RunEnd(str(goal[0]), {queue: _offset(end) for queue, (end,) in _flat(goal[1])}),
                str(session),
                {queue: SkippedCount(_offset(count), str(reason)) for queue, (count, reason) in _flat(*more or [{}])},
            )
        except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
            raise ProtocolError(f"the stored plan is not valid: {error}") from None


def _nested(items: Iterable[tuple[MessageQueue, Iterable[Any]]]) -> dict[str, dict[str, list[list[Any]]]]:
    """Group by topic and broker, so that each name is encoded once.

    The leaves are lists of a queue id followed by the item's values.
    """
    found: dict[str, dict[str, list[list[Any]]]] = {}
    for queue, offsets in items:
        found.setdefault(queue.topic, {}).setdefault(queue.broker, []).append([queue.queue_id, *offsets])
    return found


def _flat(nested: Any) -> Iterable[tuple[MessageQueue, list[Any]]]:
    for topic, brokers in nested.items():
        for broker, queues in brokers.items():
            for queue_id, *offsets in queues:
                yield MessageQueue(str(topic), str(broker), int(queue_id)), offsets


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"no offset: {value!r:.40}")
    return value
