"""Collect the figures of topics and groups as metrics, within a budget of series.

The largest topics and groups have series of their own; all others are added up under the label `OTHER`. What is not
known, such as the lag of a group that never committed, has no series: 0 would be wrong.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.core.statistics import Counter, Statistics, TopicCounter
from raymq.actors.errors import GroupNotFound, NotFoundError, TopicNotFound
from raymq.actors.metrics.metric_family import LabelValues, MetricFamily
from raymq.actors.metrics.series_limit import OTHER, OtherCounter, largest
from raymq.actors.naming import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, is_system_topic
from raymq.actors.protocol import MESSAGE_TYPE
from raymq.storage.cooperative_steps import Steps

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

#: How many queues one step reads, and how many topics or groups.
_QUEUES_AT_ONCE: Final = 50
_SUBJECTS_AT_ONCE: Final = 500
#: The series of one topic, and of one group in one topic.
TOPIC_SERIES: Final = 11
CONSUMPTION_SERIES: Final = 6
#: So many groups have a series of their own for their dead letters.
_DEAD_LETTER_GROUPS: Final = 200
_TOPIC: Final = ("topic", "message_type", "is_system")
_CONSUMPTION: Final = ("consumer_group", "topic", "is_retry", "is_system")
_OTHER_TOPIC: Final = (OTHER, "normal", "false")
_OTHER_CONSUMPTION: Final = (OTHER, OTHER, "false", "false")


class GroupInTopic(NamedTuple):
    """A group in a topic."""

    group: str
    topic: str

    @property
    def labels(self) -> LabelValues:
        """Return the values of the labels of its series."""
        is_retry, is_system = self.topic.startswith(RETRY_PREFIX), is_system_topic(self.topic)
        return self.group, self.topic, flag(is_retry), flag(is_system)


class Left(NamedTuple):
    """What a group has not finished in a topic.

    None where it is not known of any queue.
    """

    lag: int | None = None
    in_flight: int | None = None
    ready: int | None = None
    oldest_ms: int | None = None


class TopicMetrics:
    """Collects the metrics of topics and groups. Used on the broker's event loop."""

    def __init__(self, core: BrokerCore, statistics: Statistics, groups: ClientRegistry, budget: int) -> None:
        """Create a collector of at most about `budget` series."""
        self._core = core
        self._statistics = statistics
        self._groups = groups
        self._consumption = ConsumeStats(core, groups, statistics)
        self.budget = budget
        self._others: defaultdict[str, OtherCounter[str]] = defaultdict(OtherCounter)
        self._other_pairs: defaultdict[str, OtherCounter[GroupInTopic]] = defaultdict(OtherCounter)

    def collect_steps(self) -> Steps[list[MetricFamily]]:
        """Return the metrics, in steps."""
        left = yield from self._left_steps()
        topics = dict(self._statistics.topics())
        counts = yield from _mapping_steps(
            list(self._statistics.consumption().items()), lambda item: (GroupInTopic(item[0][1], item[0][0]), item[1])
        )
        sizes = dict.fromkeys(left, 0.0)
        sizes |= yield from _mapping_steps(counts.items(), lambda item: (item[0], float(item[1].messages)))
        topics_share = max(self.budget // 2, self.budget - CONSUMPTION_SERIES * len(sizes))
        topic_sizes = yield from _mapping_steps(topics.items(), lambda item: (item[0], float(item[1].messages)))
        named_topics = largest(topic_sizes, topics_share // TOPIC_SERIES)
        yield None
        pairs_share = self.budget - TOPIC_SERIES * len(named_topics)
        named_pairs = largest(sizes, pairs_share // CONSUMPTION_SERIES)
        yield None
        families = yield from self._topic_steps(topics, named_topics)
        families += yield from self._left_families_steps(left, named_pairs)
        families += yield from self._delivered_steps(counts, named_pairs)
        families += yield from self._dead_letter_steps()
        unnamed = MetricFamily("raymq_unnamed_subjects", "gauge", "Topics, and groups in topics, counted as other.")
        unnamed.samples[()] = float(len(topics) - len(named_topics) + len(sizes) - len(named_pairs))
        return [*families, unnamed]

    def _topic_steps(self, topics: Mapping[str, TopicCounter], named: set[str]) -> Steps[list[MetricFamily]]:
        messages = MetricFamily("rocketmq_messages_in_total", "counter", "Messages stored.", _TOPIC)
        stored = MetricFamily("rocketmq_throughput_in_total", "counter", "Bytes stored.", _TOPIC)
        sizes = MetricFamily("rocketmq_message_size", "histogram", "Bytes of a stored message.", _TOPIC)
        for number, name in enumerate(named, 1):
            labels, counted = self._topic_labels(name), topics[name]
            messages.samples[labels], stored.samples[labels] = counted.messages, counted.bytes
            sizes.samples[labels] = counted.sizes.copy()
            if number % _SUBJECTS_AT_ONCE == 0:
                yield None
        for family, what in ((messages, "messages"), (stored, "bytes")):
            values = yield from _mapping_steps(topics.items(), partial(_counted, what))
            total = yield from self._others[what].update_steps(values, named)
            if len(named) < len(topics):
                family.samples[_OTHER_TOPIC] = total
        return [messages, stored, sizes]

    def _topic_labels(self, topic: str) -> LabelValues:
        config = self._core.store.topic_configs.get(topic)
        kind = "normal" if config is None else config.attributes.get(MESSAGE_TYPE, "normal").lower()
        return topic, kind, flag(is_system_topic(topic))

    def _left_steps(self) -> Steps[dict[GroupInTopic, Left]]:
        """Return what each group has not finished in each of its topics."""
        found: dict[GroupInTopic, Left] = {}
        looked_at = 0
        for group in sorted(self._core.group_settings.all()):
            looked_at += 1
            if looked_at % _QUEUES_AT_ONCE == 0:
                yield None
            try:
                topics = self._consumption.topics_of(group)
            except GroupNotFound:  # deleted between two steps
                continue
            owners = self._groups.owners(group)
            for topic in topics:
                lag: list[int] = []
                in_flight: list[int] = []
                ready: list[int] = []
                ages: list[int] = []
                with contextlib.suppress(TopicNotFound, NotFoundError):
                    for queue_id in range(self._core.topics.get(topic).read_queues):
                        looked_at += 1
                        if looked_at % _QUEUES_AT_ONCE == 0:
                            yield None
                        left = self._consumption.left(group, topic, queue_id, owners.get((topic, queue_id)))
                        if left is None:
                            continue
                        for known, value in (
                            (lag, left.lag),
                            (in_flight, left.in_flight),
                            (ready, left.ready),
                            (ages, left.unfinished_ms),
                        ):
                            if value is not None:
                                known.append(value)
                found[GroupInTopic(group, topic)] = Left(
                    sum(lag) if lag else None,
                    sum(in_flight) if in_flight else None,
                    sum(ready) if ready else None,
                    max(ages) if ages else None,
                )
        return found

    def _left_families_steps(
        self, left: Mapping[GroupInTopic, Left], named: set[GroupInTopic]
    ) -> Steps[list[MetricFamily]]:
        families = [
            MetricFamily(name, "gauge", text, _CONSUMPTION)
            for name, text in (
                ("rocketmq_consumer_lag_messages", "Messages after the committed offsets."),
                ("rocketmq_consumer_inflight_messages", "Messages that were given out and are not finished."),
                ("rocketmq_consumer_ready_messages", "Messages that could be given out now."),
                ("rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest message that is not finished."),
            )
        ]
        others: list[list[int]] = [[] for _ in families]
        for number, (pair, values) in enumerate(left.items(), 1):
            labels = pair.labels if pair in named else None
            for family, other, value in zip(families, others, values, strict=True):
                if value is None:
                    continue
                if labels is None:
                    other.append(value)
                else:
                    family.samples[labels] = value
            if number % _SUBJECTS_AT_ONCE == 0:
                yield None
        for family, other in zip(families, others, strict=True):
            if other:
                family.samples[_OTHER_CONSUMPTION] = max(other) if family is families[-1] else sum(other)
        return families

    def _delivered_steps(
        self, counts: Mapping[GroupInTopic, Counter], named: set[GroupInTopic]
    ) -> Steps[list[MetricFamily]]:
        messages = MetricFamily("rocketmq_messages_out_total", "counter", "Messages delivered.", _CONSUMPTION)
        delivered = MetricFamily("rocketmq_throughput_out_total", "counter", "Bytes delivered.", _CONSUMPTION)
        for number, pair in enumerate(counts.keys() & named, 1):
            messages.samples[pair.labels] = counts[pair].messages
            delivered.samples[pair.labels] = counts[pair].bytes
            if number % _SUBJECTS_AT_ONCE == 0:
                yield None
        for family, what in ((messages, "messages"), (delivered, "bytes")):
            values = yield from _mapping_steps(counts.items(), partial(_counted, what))
            total = yield from self._other_pairs[what].update_steps(values, named)
            if not counts.keys() <= named:
                family.samples[_OTHER_CONSUMPTION] = total
        return [messages, delivered]

    def _dead_letter_steps(self) -> Steps[list[MetricFamily]]:
        died = MetricFamily(
            "rocketmq_send_to_dlq_messages_total", "counter", "Messages that became dead letters.", _CONSUMPTION
        )
        waiting = MetricFamily("raymq_dead_letters", "gauge", "Dead letters of a group.", ("consumer_group",))
        found: dict[str, tuple[int, int]] = {}
        for number, topic in enumerate(self._core.store.topic_configs.all(), 1):
            if topic.startswith(DLQ_PREFIX):
                found[topic.removeprefix(DLQ_PREFIX)] = self._core.bounds(topic, 0)
            if number % _QUEUES_AT_ONCE == 0:
                yield None
        named = largest({group: float(high) for group, (_, high) in found.items()}, _DEAD_LETTER_GROUPS)
        for group in named:
            low, high = found[group]
            died.samples[group, dlq_topic(group), "false", "true"] = high
            waiting.samples[group,] = high - low
        if len(named) < len(found):
            rest = [bounds for group, bounds in found.items() if group not in named]
            waiting.samples[OTHER,] = sum(high - low for low, high in rest)
            died.samples[_OTHER_CONSUMPTION] = sum(high for _, high in rest)
        return [died, waiting]


def _counted(what: str, item: tuple[_Key, Counter]) -> tuple[_Key, float]:
    """Return the key of a counter, and its "messages" or "bytes"."""
    return item[0], float(getattr(item[1], what))


def _mapping_steps(
    items: Iterable[_Item], convert: Callable[[_Item], tuple[_Key, _Value]]
) -> Steps[dict[_Key, _Value]]:
    """Return the mapping of the keys and values that `convert` returns, in steps."""
    made: dict[_Key, _Value] = {}
    for number, item in enumerate(items, 1):
        key, value = convert(item)
        made[key] = value
        if number % _SUBJECTS_AT_ONCE == 0:
            yield None
    return made


def flag(value: bool) -> str:
    """Return a truth value as a label."""
    return "true" if value else "false"
