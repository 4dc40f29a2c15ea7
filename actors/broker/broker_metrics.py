"""Collect the figures of a broker as metrics.

The names that begin with `rocketmq_` and their labels are those of RocketMQ 5 (BrokerMetricsConstant,
DefaultStoreMetricsConstant, RemotingMetricsConstant); figures that RocketMQ does not have begin with `raymq_`. Reading
the figures takes steps, so that a broker with many queues answers its clients meanwhile.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.errors import GroupNotFound, NotFoundError, StoreCorrupt, TopicNotFound
from raymq.actors.metrics.metric_family import LabelValues, MetricFamily
from raymq.actors.metrics.series_limit import MAX_SERIES, OTHER, OtherCounter, largest
from raymq.actors.naming import DLQ_PREFIX, RETRY_PREFIX, dlq_topic, is_system_topic
from raymq.actors.protocol import MESSAGE_TYPE, BrokerInfo, TransactionOutcome
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.request_latency import RequestLatency
from raymq.storage.cooperative_steps import Steps
from raymq.storage.histogram import Histogram

#: How many queues one step reads.
_QUEUES_AT_ONCE: Final = 50
#: The series of one topic, and of one group in one topic.
_TOPIC_SERIES: Final = 11
_CONSUMPTION_SERIES: Final = 6
#: The budget of series without topic and group: requests by code, connections, disk, and so on.
_OTHER_SERIES: Final = 1_000
#: The requests that may wait for messages.
_LONG_POLLING: Final = frozenset(
    {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.FETCH}
)
_TOPIC: Final = ("topic", "message_type", "is_system")
_CONSUMPTION: Final = ("consumer_group", "topic", "is_retry", "is_system")


class BrokerMetrics:
    """Collects the metrics of a broker that serves clients. Used on its event loop."""

    def __init__(
        self,
        core: BrokerCore,
        statistics: Statistics,
        groups: ClientRegistry,
        latency: RequestLatency,
        status: Callable[[], BrokerInfo],
        replicate_seconds: Histogram | None = None,
        max_series: int = MAX_SERIES,
    ) -> None:
        self._core = core
        self._statistics = statistics
        self._groups = groups
        self._latency = latency
        self._status = status
        self._replicate_seconds = replicate_seconds
        self._consumption = ConsumeStats(core, groups, statistics)
        self._budget = max_series - _OTHER_SERIES
        self._others: defaultdict[str, OtherCounter[LabelValues]] = defaultdict(OtherCounter)

    def collect_steps(self) -> Steps[list[MetricFamily]]:
        """Return all metrics, in steps."""
        families = [*self._broker(), *self._storage(), *self._delays(), *self._requests(), *self._connections()]
        topics = self._statistics.topics()
        pairs = yield from self._progress_steps()
        topic_share = self._budget * _TOPIC_SERIES * len(topics)
        shares = max(1, _TOPIC_SERIES * len(topics) + _CONSUMPTION_SERIES * len(pairs))
        most_topics = min(len(topics), max(1, topic_share // shares // _TOPIC_SERIES))
        most_pairs = max(1, (self._budget - most_topics * _TOPIC_SERIES) // _CONSUMPTION_SERIES)
        named_topics = largest({name: counter.messages for name, counter in topics.items()}, most_topics)
        families += self._topics(named_topics)
        yield None
        families += self._consumed(pairs, most_pairs)
        unnamed = len(topics) - len(named_topics) + max(0, len(pairs) - most_pairs)
        families.append(
            gauge("raymq_unnamed_subjects", "Topics, and groups in topics, that are counted as other.", unnamed)
        )
        series = sum(family.series for family in families) + 1
        families.append(gauge("raymq_series", "How many series this broker has.", series))
        return families

    # -- the broker ----------------------------------------------------------------------------------------------

    def _broker(self) -> Iterator[MetricFamily]:
        core, lag = self._core, self._statistics.loop_lag
        yield gauge("rocketmq_broker_permission", "4 to read plus 2 to write.", core.topics.permission)
        yield gauge("rocketmq_topic_number", "Topics on this broker.", len(core.store.topic_configs.all()))
        yield gauge("rocketmq_consumer_group_number", "Consumer groups.", len(core.group_settings.all()))
        yield from broker_state(self._status())
        yield gauge("raymq_loop_stop_seconds", "Longest stop of the event loop, of the last 10 to 20 s.", lag.recent)
        yield gauge("raymq_loop_longest_stop_seconds", "Longest stop of the event loop since the start.", lag.longest)
        yield counter("raymq_loop_long_stops_total", "Stops of the event loop above 20 ms.", lag.long_count)
        refused = MetricFamily("raymq_refused_appends_total", "counter", "Appends that were refused.", ("cause",))
        refused.samples = {(cause,): count for cause, count in self._statistics.refusals.items()}
        yield refused
        quarantined = MetricFamily(
            "raymq_quarantined_messages_total", "counter", "Messages that could not be copied.", ("purpose",)
        )
        quarantined.samples = {(purpose,): count for purpose, count in core.set_aside.counts.items()}
        yield quarantined
        watermark = MetricFamily("rocketmq_processor_watermark", "gauge", "Requests that wait.", ("processor",))
        watermark.samples = {("send",): core.admission.appends_under_way}
        yield watermark

    def _storage(self) -> Iterator[MetricFamily]:
        store = self._core.store
        low, high = store.min_physical_offset, store.max_physical_offset
        behind = high - store.flushed_offset
        yield storage("rocketmq_storage_size_bytes", "Bytes of messages in the log.", high - low)
        yield storage("rocketmq_storage_flush_behind_bytes", "Bytes that are not on disk yet.", behind)
        yield storage("rocketmq_storage_dispatch_behind_bytes", "Bytes that are not in the queues yet.", 0)
        yield storage(
            "rocketmq_storage_message_reserve_time_milliseconds", "Age of the oldest message.", self._oldest_ms()
        )
        yield histogram("raymq_flush_seconds", "Duration of a flush to disk.", store.flush_seconds)
        append, deliver = self._core.admission.append_seconds, self._statistics.deliver_seconds
        yield histogram("raymq_append_seconds", "Duration of an append in the store.", append)
        yield histogram("raymq_deliver_seconds", "Time from the storing of a message to its delivery.", deliver)
        if self._replicate_seconds is not None:
            text = "Time from an append to its confirmation by the replicas in sync."
            yield histogram("raymq_replicate_seconds", text, self._replicate_seconds)

    def _oldest_ms(self) -> int:
        store = self._core.store
        with contextlib.suppress(NotFoundError, StoreCorrupt):
            if (oldest := next(store.walk(store.min_physical_offset), None)) is not None:
                return max(0, int(self._core.clock() * 1000) - oldest.store_timestamp_ms)
        return 0

    def _delays(self) -> Iterator[MetricFamily]:
        core = self._core
        yield gauge("raymq_delayed_messages", "Messages that wait in the delay levels.", core.schedule.waiting)
        halves = MetricFamily("rocketmq_half_messages", "gauge", "Open transactions.", ("topic",))
        counts = Counter(half.topic for half in core.transactions.open_halves())
        for topic in largest(counts, _OTHER_SERIES // 5):
            halves.samples[topic,] = counts[topic]
        yield halves
        yield gauge("raymq_delivery_lateness_seconds", "How late due messages are delivered.", self._status().lateness)
        commits = MetricFamily("rocketmq_commit_messages_total", "counter", "Committed transactions.", ("topic",))
        rollbacks = MetricFamily("rocketmq_rollback_messages_total", "counter", "Ended without effect.", ("topic",))
        for topic, outcome in largest(core.transactions.ended, _OTHER_SERIES // 5):
            ended = commits if outcome is TransactionOutcome.COMMIT else rollbacks
            ended.samples[topic,] = core.transactions.ended[topic, outcome]
        yield commits
        yield rollbacks
        letters = MetricFamily(
            "rocketmq_send_to_dlq_messages_total", "counter", "Messages that became dead letters.", _CONSUMPTION
        )
        waiting = MetricFamily("raymq_dead_letters", "gauge", "Dead letters of a group.", ("consumer_group",))
        for topic in core.store.topic_configs.all():
            if topic.startswith(DLQ_PREFIX):
                group, (low, high) = topic.removeprefix(DLQ_PREFIX), core.bounds(topic, 0)
                letters.samples[group, dlq_topic(group), "false", "true"] = high
                waiting.samples[group,] = high - low
        yield letters
        yield waiting

    def _requests(self) -> Iterator[MetricFamily]:
        family = MetricFamily(
            "rocketmq_rpc_latency_milliseconds",
            "histogram",
            "Duration of a request; one that waits for messages counts with its wait.",
            ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        )
        for (code, response), latency in self._latency.by_codes().items():
            result = "success" if response == ResponseCode.SUCCESS else "process_request_failed"
            codes = _name(RequestCode, code), _name(ResponseCode, response)
            family.samples["remoting", *codes, _flag(code in _LONG_POLLING), result] = latency.copy()
        yield family

    def _connections(self) -> Iterator[MetricFamily]:
        members: defaultdict[LabelValues, int] = defaultdict(int)
        for group, known in self._groups.consumer_groups().items():
            for member in known.members.values():
                client = member.client
                way = member.way[0].removeprefix("CONSUME_").lower() or "unknown"
                members[group, client.language.lower(), str(client.version), way] += 1
        labels = ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system")
        family = MetricFamily("rocketmq_consumer_connections", "gauge", "Connected consumers.", labels)
        for group, language, version, way in sorted(largest(members, _OTHER_SERIES // 5)):
            key = (group, language, version, way)
            family.samples[(*key, "remoting", "false")] = members[key]
        yield family
        producers: defaultdict[LabelValues, int] = defaultdict(int)
        for client in {member.client for each in self._groups.producer_groups().values() for member in each}:
            producers[client.language.lower(), str(client.version), "remoting"] += 1
        yield MetricFamily(
            "rocketmq_producer_connections",
            "gauge",
            "Connected producers.",
            ("language", "version", "protocol_type"),
            dict(producers),
        )

    # -- topics --------------------------------------------------------------------------------------------------

    def _topics(self, named: set[str]) -> Iterator[MetricFamily]:
        sizes = MetricFamily("rocketmq_message_size", "histogram", "Bytes of a stored message.", _TOPIC)
        families = {
            "messages": MetricFamily("rocketmq_messages_in_total", "counter", "Messages stored.", _TOPIC),
            "bytes": MetricFamily("rocketmq_throughput_in_total", "counter", "Bytes stored.", _TOPIC),
        }
        topics = self._statistics.topics()
        for name, counted in topics.items():
            labels = self._topic_labels(name) if name in named else (OTHER, "normal", "false")
            if name in named:
                families["messages"].samples[labels] = counted.messages
                families["bytes"].samples[labels] = counted.bytes
                sizes.samples[labels] = counted.sizes.copy()
        if len(named) < len(topics):
            keys: set[LabelValues] = {(name,) for name in named}
            for what, family in families.items():
                counts = (((name,), float(getattr(counted, what))) for name, counted in topics.items())
                family.samples[OTHER, "normal", "false"] = self._others[f"topic.{what}"].update(counts, keys)
        yield from families.values()
        yield sizes

    def _topic_labels(self, topic: str) -> LabelValues:
        config = self._core.store.topic_configs.get(topic)
        kind = "normal" if config is None else config.attributes.get(MESSAGE_TYPE, "normal").lower()
        return topic, kind, _flag(is_system_topic(topic))

    # -- groups --------------------------------------------------------------------------------------------------

    def _progress_steps(self) -> Steps[dict[tuple[str, str], tuple[float | None, ...]]]:
        """Return for each group and topic the lag, in flight, ready, and age of the oldest message in ms.

        The number in flight is None if it is not known for all queues.
        """
        found: dict[tuple[str, str], tuple[float | None, ...]] = {}
        looked_at = 0
        for group in sorted(self._core.group_settings.all()):
            try:
                topics = self._consumption.topics_of(group)
            except GroupNotFound:  # deleted between two steps
                continue
            owners = self._groups.owners(group)
            for topic in topics:
                lag = ready = oldest_ms = 0
                in_flight: int | None = 0
                with contextlib.suppress(TopicNotFound, NotFoundError):
                    for queue_id in range(self._core.topics.get(topic).read_queues):
                        looked_at += 1
                        if looked_at % _QUEUES_AT_ONCE == 0:
                            yield None
                        left = self._consumption.left(group, topic, queue_id, owners.get((topic, queue_id)))
                        if left is not None:
                            lag += left.lag
                            more = left.in_flight
                            in_flight = None if in_flight is None or more is None else in_flight + more
                            ready += left.ready
                            oldest_ms = max(oldest_ms, left.unfinished_ms or 0)
                    found[group, topic] = lag, in_flight, ready, oldest_ms
        return found

    def _consumed(self, pairs: Mapping[tuple[str, str], tuple[float | None, ...]], most: int) -> Iterator[MetricFamily]:
        families = [
            MetricFamily(name, "gauge", text, _CONSUMPTION)
            for name, text in (
                ("rocketmq_consumer_lag_messages", "Messages after the committed offsets."),
                ("rocketmq_consumer_inflight_messages", "Messages that were given out and are not finished."),
                ("rocketmq_consumer_ready_messages", "Messages that could be given out now."),
                ("rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest message that is not finished."),
            )
        ]
        counts = self._statistics.consumption()
        sizes = {
            pair: float(counts[pair[1], pair[0]].messages if (pair[1], pair[0]) in counts else 0) for pair in pairs
        }
        for topic, group in counts:
            sizes.setdefault((group, topic), float(counts[topic, group].messages))
        named = largest(sizes, most)
        for pair, values in pairs.items():
            labels = _consumption_labels(*pair) if pair in named else (OTHER, OTHER, "false", "false")
            for family, value in zip(families, values, strict=True):
                if value is None:
                    continue
                before = family.samples.get(labels, 0)
                assert isinstance(before, int | float)
                family.samples[labels] = max(before, value) if family is families[-1] else before + value
        yield from families
        for name, what, text in (
            ("rocketmq_messages_out_total", "messages", "Messages delivered."),
            ("rocketmq_throughput_out_total", "bytes", "Bytes delivered."),
        ):
            family = MetricFamily(name, "counter", text, _CONSUMPTION)
            for (topic, group), counted in counts.items():
                if (group, topic) in named:
                    family.samples[_consumption_labels(group, topic)] = getattr(counted, what)
            if len(named) < len(sizes):
                others = (((group, topic), float(getattr(each, what))) for (topic, group), each in counts.items())
                total = self._others[f"group.{what}"].update(others, {(group, topic) for group, topic in named})
                family.samples[OTHER, OTHER, "false", "false"] = total
            yield family


def broker_state(status: BrokerInfo) -> Iterator[MetricFamily]:
    """Return the metrics that a broker has in every role."""
    yield gauge("raymq_up", "1: the broker runs.", 1)
    yield gauge("raymq_is_master", "1: the broker serves clients; 0: it is a replica.", status.role == "master")
    yield gauge("raymq_epoch", "The epoch of the master, or the number of starts.", status.epoch)
    yield gauge("raymq_disk_ratio", "The used part of the disk, 0 to 1.", status.disk_ratio)
    yield gauge("raymq_corrupt_records", "Damaged places in the files.", len(status.corruption))
    if status.in_sync is not None:
        yield gauge("raymq_in_sync_replicas", "Replicas in sync, with the master.", len(status.in_sync))
    if status.lag_bytes is not None:
        yield gauge("raymq_replica_lag_bytes", "Bytes that this replica lacks.", status.lag_bytes)


def gauge(name: str, text: str, value: float) -> MetricFamily:
    """Return a gauge with one series."""
    return MetricFamily(name, "gauge", text, (), {(): float(value)})


def counter(name: str, text: str, value: float) -> MetricFamily:
    """Return a counter with one series."""
    return MetricFamily(name, "counter", text, (), {(): float(value)})


def histogram(name: str, text: str, value: Histogram) -> MetricFamily:
    """Return a histogram with one series, which does not change with `value`."""
    return MetricFamily(name, "histogram", text, (), {(): value.copy()})


def storage(name: str, text: str, value: float) -> MetricFamily:
    """Return a gauge of RocketMQ's store, with its labels."""
    return MetricFamily(name, "gauge", text, ("storage_type", "storage_medium"), {("local", "disk"): float(value)})


def _consumption_labels(group: str, topic: str) -> LabelValues:
    return group, topic, _flag(topic.startswith(RETRY_PREFIX)), _flag(is_system_topic(topic))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _name(codes: type[RequestCode | ResponseCode], code: int) -> str:
    try:
        return codes(code).name.lower()
    except ValueError:
        return str(code)
