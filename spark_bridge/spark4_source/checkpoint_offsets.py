"""The offsets of a stream in Spark's checkpoint: a plan encoded as JSON.

{"ends": {topic: {broker: {queue id: offset}}}, "new": in the same form, the start offsets of queues that are in no
earlier offset, "origins": {topic: {broker: [the topic's id there, epoch]}}}. The end of one batch is the start of the
next one, except for queues under "skipped": with `on_data_loss="skip"` a batch begins there at the first remaining
message.

Spark stores the end of each batch, but not the start of the first one: it calls `initialOffset` again when it runs the
first batch again, and "latest" is another position then. So an initial offset is marked ("initial": true), and the end
of the first batch has all of its queues under "new".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.client.bulk.range_reader import BrokerTopic
from raymq.spark_bridge.batch_plan import BatchPlan, TopicEpoch

#: As Spark's `json` module parses the text.
Offset = dict[str, Any]
_Nested = dict[str, dict[str, dict[str, Any]]]
_INITIAL: Final = "initial"
_SKIPPED: Final = "skipped"


def initial_offset(plan: BatchPlan) -> Offset:
    """Return the initial offset of a query that has read nothing."""
    return {**end_offset(plan, ()), _INITIAL: True}


def offset_after(plan: BatchPlan, start: Mapping[str, Any], known: Iterable[MessageQueue]) -> Offset:
    """Return the end of a plan that begins at the offset `start`.

    `known` are the queues whose starts an earlier offset contains.
    """
    if start.get(_INITIAL):
        return end_offset(plan, ())
    before = dict(_flat(start["ends"]))
    skipped = {queue: begin for queue, (begin, _) in plan.ranges.items() if begin != before.get(queue, begin)}
    return end_offset(plan, known) | ({_SKIPPED: _nested(skipped)} if skipped else {})


def end_offset(plan: BatchPlan, known: Iterable[MessageQueue]) -> Offset:
    """Return the end of a plan; an earlier offset contains the starts of `known` queues."""
    before = set(known)
    return {
        "ends": _nested({queue: end for queue, (_, end) in plan.ranges.items()}),
        "new": _nested({queue: begin for queue, (begin, _) in plan.ranges.items() if queue not in before}),
        "origins": {
            topic: {broker: list(identity) for (of, broker), identity in sorted(plan.origins.items()) if of == topic}
            for topic in sorted(plan.topics)
        },
    }


def previous_plan(offset: Mapping[str, Any]) -> BatchPlan:
    """Return the plan of a batch that ended at an offset.

    It serves to plan the next batch; only the ends of its ranges are known.

    Raises:
        ProtocolError: it is not an offset of this source.
    """
    return _read(lambda: BatchPlan({queue: (end, end) for queue, end in _flat(offset["ends"])}, _origins(offset)))


def plan_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> BatchPlan:
    """Return the plan of the batch from one offset to a later one.

    A topic that is no longer read is left out. Raises as `previous_plan`.
    """

    def read() -> BatchPlan:
        news, starts = dict(_flat(end["new"])), dict(_flat(start["ends"]))
        begins = starts | news if start.get(_INITIAL) else news | starts | dict(_flat(end.get(_SKIPPED, {})))
        return BatchPlan({queue: (begins[queue], at) for queue, at in _flat(end["ends"])}, _origins(end))

    return _read(read)


def _read(make: Any) -> BatchPlan:
    try:
        plan: BatchPlan = make()
        if any(begin < 0 or end < begin for begin, end in plan.ranges.values()):
            raise ValueError("a range that ends before it begins")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the checkpoint is not one of this source: {error!r}") from None
    return plan


def _origins(offset: Mapping[str, Any]) -> dict[BrokerTopic, TopicEpoch]:
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
