"""Keep the counts of a process's clients, and turn them into metrics.

The counts of clients of one kind and group are added up, and outlive the clients, so that they never decrease. Hot
paths add to plain attributes (`raymq.actors.sending.send_counts` says why that needs no lock);
`raymq.client.metrics_exporter` reads them every few seconds.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Protocol, TypeVar, cast

from raymq.actors.metrics.metric_family import MetricFamily
from raymq.actors.sending.send_counts import LATENCY_BOUNDS, SendCounts, TopicSends
from raymq.client.fork_hooks import register_child_reset
from raymq.storage.histogram import Histogram

#: The most series of one process. Further topics and groups are counted together as `OTHER`.
MAX_SERIES: Final = 5_000
OTHER: Final = "(other)"
#: What is left for gauges, whose number is that of the open producers' groups.
_GAUGES_ROOM: Final = 200

PRODUCER: Final = "producer"
PUSH_CONSUMER: Final = "push_consumer"
SIMPLE_CONSUMER: Final = "simple_consumer"


_TAGS: Final = ("client", "group", "topic")
_OUTCOME: Final = (*_TAGS, "outcome")


class ConsumeCounts:
    """The messages of one topic that a consumer's program has processed."""

    __slots__ = ("calls", "failures", "lease_losses", "messages", "seconds")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Set all counts to 0."""
        self.calls = self.messages = self.failures = self.lease_losses = 0
        self.seconds = 0.0


Counts = TopicSends | ConsumeCounts
#: The kind of client, its group and the topic.
Tags = tuple[str, str, str]
_C = TypeVar("_C", TopicSends, ConsumeCounts)


class MeteredProducer(Protocol):
    """A producer whose gauges are read."""

    group: str

    def gauges(self) -> tuple[int, int]:
        """Return the number of isolated brokers and of buffered messages. Any thread may call this."""


class ClientMetrics:
    """The counts of one process. Any thread may use it."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._counts: dict[Tags, Counts] = {}
        self._others: dict[str, Counts] = {
            PRODUCER: TopicSends(),
            PUSH_CONSUMER: ConsumeCounts(),
            SIMPLE_CONSUMER: ConsumeCounts(),
        }
        #: The clients of whose topics some are counted together.
        self._overflowed: set[str] = set()
        self._used = sum(map(series_of_topic, self._others.values())) + _GAUGES_ROOM
        self._producers: weakref.WeakSet[MeteredProducer] = weakref.WeakSet()
        self._adding = threading.RLock()
        register_child_reset(self, ClientMetrics._reset_in_child)

    def sends(self, group: str) -> SendCounts:
        """Return the counts of the producers of a group."""
        others = self._others[PRODUCER]
        assert isinstance(others, TopicSends)
        return SendCounts(lambda topic: self._find(PRODUCER, group, topic, TopicSends), others)

    def consumed(self, client: str, group: str, topic: str) -> ConsumeCounts:
        """Return the counts of a kind of consumer, by group and topic."""
        found = self._counts.get((client, group, topic)) or self._find(client, group, topic, ConsumeCounts)
        found = found or self._others[client]
        assert isinstance(found, ConsumeCounts)
        return found

    def watch(self, producer: MeteredProducer) -> None:
        """Read the gauges of a producer until `unwatch`."""
        with self._adding:
            self._producers.add(producer)

    def unwatch(self, producer: MeteredProducer) -> None:
        """Undo `watch`."""
        with self._adding:
            self._producers.discard(producer)

    def families(self) -> list[MetricFamily]:
        """Return all metrics, with at most the limit of series."""
        with self._adding:
            others = [((client, OTHER, OTHER), self._others[client]) for client in sorted(self._overflowed)]
            counted = [*self._counts.items(), *others]
            producers = list(self._producers)
        sends = [(tags, counts) for tags, counts in counted if isinstance(counts, TopicSends)]
        consumed = [(tags, counts) for tags, counts in counted if isinstance(counts, ConsumeCounts)]
        return [*_families_of_sends(sends), *_families_of_calls(consumed), *_gauges(producers)]

    def _find(self, client: str, group: str, topic: str, make: Callable[[], _C]) -> _C | None:
        """Return the counts of these tags, new ones if necessary.

        Return None if there are too many.
        """
        key = (client, group, topic)
        with self._adding:
            found = self._counts.get(key)
            if found is not None:
                return cast("_C", found)  # a client's counts are all of one class
            new = make()
            if self._used + series_of_topic(new) > self._max_series:
                self._overflowed.add(client)
                return None
            self._used += series_of_topic(new)
            self._counts[key] = new
            return new

    def _reset_in_child(self) -> None:
        """Begin at 0 in a forked child: the parent publishes what it has counted."""
        self._adding = threading.RLock()
        self._producers = weakref.WeakSet()
        for counts in (*self._counts.values(), *self._others.values()):
            counts.clear()


def series_of_topic(counts: Counts) -> int:
    """Return how many series the counts of one topic make."""
    if isinstance(counts, ConsumeCounts):
        return 5
    return 3 + 3 + 1 + len(LATENCY_BOUNDS) + 3  # the histogram has a bucket more, a sum and a count


def _families_of_sends(counted: Iterable[tuple[Tags, TopicSends]]) -> list[MetricFamily]:
    """Return the metrics of producers."""
    sends = _counter("sends", "Sends of single messages and of batches, by outcome.", _OUTCOME)
    messages = _counter("sent_messages", "Messages of the sends, by outcome.", _OUTCOME)
    retries = _counter("send_retries", "Further tries of sends.")
    text = "Duration of stored sends with all their tries."
    latency = MetricFamily("raymq_client_send_seconds", "histogram", text, _TAGS)
    for tags, counts in counted:
        for outcome, of_sends, of_messages in (
            ("ok", counts.stored, counts.stored_messages),
            ("not_stored", counts.not_stored, counts.not_stored_messages),
            ("unknown", counts.unknown, counts.unknown_messages),
        ):
            sends.samples[*tags, outcome] = of_sends
            messages.samples[*tags, outcome] = of_messages
        retries.samples[tags] = counts.retries
        latency.samples[tags] = Histogram.from_counts(LATENCY_BOUNDS, counts.latencies, counts.seconds)
    return [sends, messages, retries, latency]


def _families_of_calls(counted: Iterable[tuple[Tags, ConsumeCounts]]) -> list[MetricFamily]:
    """Return the metrics of consumers."""
    calls = _counter("listener_calls", "Calls of listeners that have ended.")
    messages = _counter("listener_messages", "Messages of ended calls of listeners.")
    failures = _counter("listener_failures", "Messages on which listeners failed.")
    seconds = _counter("listener_seconds", "Duration of calls of listeners.")
    losses = _counter("lease_losses", "Leases of messages that ended before their outcome was stored.")
    for tags, counts in counted:
        calls.samples[tags] = counts.calls
        messages.samples[tags] = counts.messages
        failures.samples[tags] = counts.failures
        seconds.samples[tags] = counts.seconds
        losses.samples[tags] = counts.lease_losses
    return [calls, messages, failures, seconds, losses]


def _gauges(producers: Iterable[MeteredProducer]) -> list[MetricFamily]:
    """Return the gauges of each group: its worst producer's isolated brokers, and the sum of the buffers."""
    labels = ("client", "group")
    isolated = MetricFamily("raymq_client_isolated_brokers", "gauge", "Brokers that producers avoid now.", labels)
    text = "Gathered messages without a response (linger)."
    buffered = MetricFamily("raymq_client_buffered_messages", "gauge", text, labels)
    found: dict[str, tuple[int, int]] = {}
    for producer in producers:
        avoided, waiting = producer.gauges()
        known = found.get(producer.group, (0, 0))
        found[producer.group] = (max(avoided, known[0]), waiting + known[1])
    for group, (avoided, waiting) in islice(found.items(), _GAUGES_ROOM // 2):
        isolated.samples[PRODUCER, group] = avoided
        buffered.samples[PRODUCER, group] = waiting
    return [isolated, buffered]


def _counter(name: str, text: str, labels: tuple[str, ...] = _TAGS) -> MetricFamily:
    return MetricFamily(f"raymq_client_{name}_total", "counter", text, labels)


#: The counts of this process.
CLIENT_METRICS: Final = ClientMetrics()
