"""How far a stream is, as Spark keeps it in its checkpoint: JSON that says what a plan says.

{"ends": {topic: {broker: {queue id: offset}}}, "new": the same of queues that no earlier offset had, where they begin,
"origins": {topic: {broker: [the topic's id there, epoch]}}}. The end of one batch is the start of the next one, but for
queues under "skipped": with `on_data_loss="skip"` a batch begins there where messages are left.

Spark keeps where a batch ends, and not where the first one begins: it asks for that again when it runs the first batch
again, and "latest" is another place by then. So a beginning says that it is one ("initial": true), and the end of the
first batch has all of its queues under "new".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.client.bulk.streams import Origin
from raymq.spark_bridge.plan import Lineage, Plan

#: As Spark's `json` module makes it of the text.
Offset = dict[str, Any]
_Nested = dict[str, dict[str, dict[str, Any]]]
_INITIAL: Final = "initial"
_SKIPPED: Final = "skipped"


def initial_offset(plan: Plan) -> Offset:
    """Where a query begins that has read nothing."""
    return {**offset_of(plan, ()), _INITIAL: True}


def offset_after(plan: Plan, start: Mapping[str, Any], known: Iterable[MessageQueue]) -> Offset:
    """Where a plan ends that begins at an offset with these queues."""
    if start.get(_INITIAL):
        return offset_of(plan, ())
    before = dict(_flat(start["ends"]))
    skipped = {queue: begin for queue, (begin, _) in plan.ranges.items() if begin != before.get(queue, begin)}
    return offset_of(plan, known) | ({_SKIPPED: _nested(skipped)} if skipped else {})


def offset_of(plan: Plan, known: Iterable[MessageQueue]) -> Offset:
    """Where a plan ends. `known` are the queues of which the offset before it says where they begin."""
    before = set(known)
    return {
        "ends": _nested({queue: end for queue, (_, end) in plan.ranges.items()}),
        "new": _nested({queue: begin for queue, (begin, _) in plan.ranges.items() if queue not in before}),
        "origins": {
            topic: {broker: list(told) for (of, broker), told in sorted(plan.origins.items()) if of == topic}
            for topic in sorted(plan.topics)
        },
    }


def plan_at(offset: Mapping[str, Any]) -> Plan:
    """The plan of a batch that ended there, of which nothing but its ends is known: for the one that follows.

    Raises:
        ProtocolError: it is no offset of this source.
    """
    return _read(lambda: Plan({queue: (end, end) for queue, end in _flat(offset["ends"])}, _origins(offset)))


def plan_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> Plan:
    """The plan of the batch from one offset to a later one. A topic that is read no longer is left out.

    Raises as `plan_at`.
    """

    def read() -> Plan:
        news, starts = dict(_flat(end["new"])), dict(_flat(start["ends"]))
        begins = starts | news if start.get(_INITIAL) else news | starts | dict(_flat(end.get(_SKIPPED, {})))
        return Plan({queue: (begins[queue], at) for queue, at in _flat(end["ends"])}, _origins(end))

    return _read(read)


def _read(make: Any) -> Plan:
    try:
        plan: Plan = make()
        if any(begin < 0 or end < begin for begin, end in plan.ranges.values()):
            raise ValueError("a range that ends before it begins")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the checkpoint is not one of this source: {error!r}") from None
    return plan


def _origins(offset: Mapping[str, Any]) -> dict[Origin, Lineage]:
    return {
        (topic, broker): (str(topic_id), int(epoch))
        for topic, brokers in offset["origins"].items()
        for broker, (topic_id, epoch) in brokers.items()
    }


def _nested(offsets: Mapping[MessageQueue, int]) -> _Nested:
    found: _Nested = {}
    for queue, offset in sorted(offsets.items()):
        found.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offset
    return found


def _flat(nested: _Nested) -> Iterable[tuple[MessageQueue, int]]:
    for topic, brokers in nested.items():
        for broker, queues in brokers.items():
            for queue_id, offset in queues.items():
                yield MessageQueue(topic, broker, int(queue_id)), int(offset)
