"""Collect the figures of a broker as metrics.

The names that begin with `rocketmq_` and their labels are those of RocketMQ 5 (BrokerMetricsConstant,
DefaultStoreMetricsConstant, RemotingMetricsConstant); figures that RocketMQ does not have begin with `raymq_`. Reading
the figures takes steps, so that a broker with many queues answers its clients meanwhile.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.topic_metrics import TopicMetrics, flag
from raymq.actors.errors import NotFoundError, StoreCorrupt
from raymq.actors.metrics.metric_family import LabelValues, MetricFamily
from raymq.actors.metrics.series_limit import MAX_SERIES, largest
from raymq.actors.protocol import BrokerInfo, TransactionOutcome
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.request_latency import RequestLatency
from raymq.storage.cooperative_steps import Steps
from raymq.storage.histogram import Histogram

#: The budget of series without topic and group: requests by code, connections, disk, and so on.
_OTHER_SERIES: Final = 2_000
#: So many pairs of request code and response code are shown, with 12 series each.
_CODES: Final = 60
#: The requests that may wait for messages.
_LONG_POLLING: Final = frozenset(
    {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.FETCH}
)


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
        self._topics = TopicMetrics(core, statistics, groups, max_series - _OTHER_SERIES)

    def collect_steps(self) -> Steps[list[MetricFamily]]:
        """Return all metrics, in steps."""
        families: list[MetricFamily] = []
        for part in (self._broker, self._storage, self._delays, self._requests, self._connections):
            families += part()
            yield None
        families += yield from self._topics.collect_steps()
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
        if (oldest_ms := self._oldest_ms()) is not None:
            name = "rocketmq_storage_message_reserve_time_milliseconds"
            yield storage(name, "Age of the oldest message.", oldest_ms)
        yield histogram("raymq_flush_seconds", "Duration of a flush to disk.", store.flush_seconds)
        append, deliver = self._core.admission.append_seconds, self._statistics.deliver_seconds
        yield histogram("raymq_append_seconds", "Duration of an append in the store.", append)
        yield histogram("raymq_deliver_seconds", "Time from the storing of a message to its delivery.", deliver)
        if self._replicate_seconds is not None:
            text = "Time from an append to its confirmation by the replicas in sync."
            yield histogram("raymq_replicate_seconds", text, self._replicate_seconds)

    def _oldest_ms(self) -> int | None:
        """Return the age of the oldest message.

        None if there is none, or if it cannot be read.
        """
        store = self._core.store
        with contextlib.suppress(NotFoundError, StoreCorrupt):
            if (oldest := next(store.walk(store.min_physical_offset), None)) is not None:
                return max(0, int(self._core.clock() * 1000) - oldest.store_timestamp_ms)
        return None

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

    def _requests(self) -> Iterator[MetricFamily]:
        family = MetricFamily(
            "rocketmq_rpc_latency_milliseconds",
            "histogram",
            "Duration of a request; one that waits for messages counts with its wait.",
            ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        )
        latencies = self._latency.by_codes()
        most = largest({codes: float(each.count) for codes, each in latencies.items()}, _CODES)
        for (code, response), latency in latencies.items():
            if (code, response) not in most:
                continue
            result = "success" if response == ResponseCode.SUCCESS else "process_request_failed"
            codes = _name(RequestCode, code), _name(ResponseCode, response)
            family.samples["remoting", *codes, flag(code in _LONG_POLLING), result] = latency.copy()
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
        named: dict[LabelValues, float | Histogram] = {
            key: producers[key] for key in largest(producers, _OTHER_SERIES // 5)
        }
        yield MetricFamily(
            "rocketmq_producer_connections",
            "gauge",
            "Connected producers.",
            ("language", "version", "protocol_type"),
            named,
        )


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


def _name(codes: type[RequestCode | ResponseCode], code: int) -> str:
    try:
        return codes(code).name.lower()
    except ValueError:
        return str(code)
