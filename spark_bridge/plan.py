"""A plan: which messages one batch of a stream reads. The brokers keep it as bytes; this is what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.client.bulk.streams import Origin

#: The form in which plans are written, and the one of plans that have skipped something. Others are refused.
_FORM: Final = 2
_FORM_WITH_SKIPPED: Final = 3
#: Of which messages offsets of a topic on a broker are: the topic's id there, and the broker's recovery epoch.
Lineage = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a run that ends by itself ends: the queues' ends when the first batch of the run was planned."""

    run: str
    ends: Mapping[MessageQueue, int]


class Skipped(NamedTuple):
    """What a stream has skipped in a queue since it began.

    Attributes:
        messages: how many that were stored and had not been read; those of a deleted topic are not counted.
        reason: why, the last time.
    """

    messages: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages of one batch.

    Attributes:
        ranges: of each queue the first offset and the one behind the last; empty ranges too, for the next batch goes on
            at their ends.
        origins: of which messages these offsets are, of each topic on each broker.
        goal: that of the run that it was planned in, None if that goes on for ever.
        session: the start of the query that it was planned in, by Spark's id.
        skipped: what the stream has skipped up to here, by queue.
    """

    ranges: Mapping[MessageQueue, tuple[int, int]]
    origins: Mapping[Origin, Lineage] = field(default_factory=dict)
    goal: Goal | None = None
    session: str = ""
    skipped: Mapping[MessageQueue, Skipped] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        """The topics that are read."""
        return {topic for topic, _ in self.origins}

    def is_last_of(self, run: str) -> bool:
        """Whether the run of that name has nothing to read behind it."""
        if self.goal is None or self.goal.run != run:
            return False
        return all(self.ranges[queue][1] >= end for queue, end in self.goal.ends.items() if queue in self.ranges)

    def pack(self) -> bytes:
        """As bytes, for `unpack`."""
        goal = None if self.goal is None else [self.goal.run, _nested((q, [end]) for q, end in self.goal.ends.items())]
        origins = [[*origin, *told] for origin, told in self.origins.items()]
        values = [_nested(self.ranges.items()), origins, goal, self.session]
        if self.skipped:
            packed: bytes = msgpack.packb([_FORM_WITH_SKIPPED, *values, _nested(self.skipped.items())])
        else:
            packed = msgpack.packb([_FORM, *values])
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> Plan:
        """What `pack` made; ProtocolError: it is no plan, or one of another version of this program."""
        try:
            form, ranges, origins, goal, session, *more = msgpack.unpackb(packed)
            if (form, len(more)) not in ((_FORM, 0), (_FORM_WITH_SKIPPED, 1)):
                raise ValueError(f"its form is {form!r:.40}")
            return cls(
                {queue: (_offset(start), _offset(end)) for queue, (start, end) in _flat(ranges)},
                {(topic, broker): (str(made), _offset(epoch)) for topic, broker, made, epoch in origins},
                None if goal is None else Goal(str(goal[0]), {queue: _offset(end) for queue, (end,) in _flat(goal[1])}),
                str(session),
                {queue: Skipped(_offset(count), str(reason)) for queue, (count, reason) in _flat(*more or [{}])},
            )
        except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
            raise ProtocolError(f"what is kept as a plan is none: {error}") from None


def _nested(items: Iterable[tuple[MessageQueue, Iterable[Any]]]) -> dict[str, dict[str, list[list[Any]]]]:
    """By topic and broker, so that their names stand once: lists of a queue id and what belongs to it."""
    found: dict[str, dict[str, list[list[Any]]]] = {}
    for queue, told in items:
        found.setdefault(queue.topic, {}).setdefault(queue.broker, []).append([queue.queue_id, *told])
    return found


def _flat(nested: Any) -> Iterable[tuple[MessageQueue, list[Any]]]:
    for topic, brokers in nested.items():
        for broker, queues in brokers.items():
            for queue_id, *told in queues:
                yield MessageQueue(str(topic), str(broker), int(queue_id)), told


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"no offset: {value!r:.40}")
    return value
