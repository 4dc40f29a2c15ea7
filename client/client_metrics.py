"""Keep the counts of a process's clients, and turn them into series of metrics.

The counts of clients of one kind and group are added up, and outlive the clients, so that they never decrease. Hot
paths add to plain attributes (`raymq.actors.sending.send_counts` says why that needs no lock);
`raymq.client.metrics_exporter` reads them every few seconds.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from raymq.actors.sending.send_counts import LATENCY_BOUNDS, SendCounts, TopicSends
from raymq.client.fork_hooks import register_child_reset

#: The most series of one process. Further topics and groups are counted together as `OTHER`.
MAX_SERIES: Final = 5_000
OTHER: Final = "other"
#: What is left for gauges, whose number is that of the open producers' groups.
_GAUGES_ROOM: Final = 200

PRODUCER: Final = "producer"
PUSH_CONSUMER: Final = "push_consumer"
SIMPLE_CONSUMER: Final = "simple_consumer"


class Family(NamedTuple):
    """A metric. A counter's name is without `_total`, which exporters add."""

    name: str
    kind: str
    help: str
    tags: tuple[str, ...]


_TAGS: Final = ("client", "group", "topic")
_OUTCOME: Final = (*_TAGS, "outcome")
SENDS: Final = Family("raymq_client_sends", "counter", "Sends of single messages and of batches, by outcome.", _OUTCOME)
MESSAGES: Final = Family("raymq_client_sent_messages", "counter", "Messages of the sends, by outcome.", _OUTCOME)
RETRIES: Final = Family("raymq_client_send_retries", "counter", "Further tries of sends.", _TAGS)
LATENCY: Final = Family(
    "raymq_client_send_seconds", "histogram", "Duration of stored sends with all their tries.", _TAGS
)
CALLS: Final = Family("raymq_client_listener_calls", "counter", "Calls of listeners that have ended.", _TAGS)
CALLED: Final = Family("raymq_client_listener_messages", "counter", "Messages of ended calls of listeners.", _TAGS)
FAILURES: Final = Family("raymq_client_listener_failures", "counter", "Messages on which listeners failed.", _TAGS)
CALL_SECONDS: Final = Family("raymq_client_listener_seconds", "counter", "Duration of calls of listeners.", _TAGS)
LOST: Final = Family(
    "raymq_client_lease_losses", "counter", "Leases of messages that ended before their outcome was stored.", _TAGS
)
ISOLATED: Final = Family(
    "raymq_client_isolated_brokers", "gauge", "Brokers that producers avoid now.", ("client", "group")
)
BUFFERED: Final = Family(
    "raymq_client_buffered_messages", "gauge", "Gathered messages without a response (linger).", ("client", "group")
)
FAMILIES: Final = (
    *(SENDS, MESSAGES, RETRIES, LATENCY, CALLS, CALLED, FAILURES, CALL_SECONDS, LOST, ISOLATED, BUFFERED),
)


class Series(NamedTuple):
    """One series: the values of the family's tags, and a number, or (the buckets' counts, their sum)."""

    family: Family
    tags: tuple[str, ...]
    value: float | tuple[tuple[int, ...], float]


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
        self._counts: dict[tuple[str, str, str], Counts] = {}
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

    def series(self) -> list[Series]:
        """Return all series, at most the limit."""
        with self._adding:
            others = [((client, OTHER, OTHER), self._others[client]) for client in sorted(self._overflowed)]
            counted = [*self._counts.items(), *others]
            producers = list(self._producers)
        found = [series for tags, counts in counted for series in _series(tags, counts)]
        return [*found, *islice(_gauges(producers), _GAUGES_ROOM)]

    def _find(self, client: str, group: str, topic: str, make: Callable[[], _C]) -> _C | None:
        """Return the counts of these tags, new ones if necessary. Return None if there are too many."""
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


def _series(tags: tuple[str, str, str], counts: Counts) -> Iterator[Series]:
    if isinstance(counts, TopicSends):
        for outcome, sends, messages in (
            ("ok", counts.stored, counts.stored_messages),
            ("not_stored", counts.not_stored, counts.not_stored_messages),
            ("unknown", counts.unknown, counts.unknown_messages),
        ):
            yield Series(SENDS, (*tags, outcome), sends)
            yield Series(MESSAGES, (*tags, outcome), messages)
        yield Series(RETRIES, tags, counts.retries)
        yield Series(LATENCY, tags, (tuple(accumulate(counts.latencies)), counts.seconds))
    else:
        yield Series(CALLS, tags, counts.calls)
        yield Series(CALLED, tags, counts.messages)
        yield Series(FAILURES, tags, counts.failures)
        yield Series(CALL_SECONDS, tags, counts.seconds)
        yield Series(LOST, tags, counts.lease_losses)


def _gauges(producers: Iterable[MeteredProducer]) -> Iterator[Series]:
    """Yield the gauges of each group: its worst producer's isolated brokers, and the sum of the buffers."""
    found: dict[str, tuple[int, int]] = {}
    for producer in producers:
        isolated, buffered = producer.gauges()
        known = found.get(producer.group, (0, 0))
        found[producer.group] = (max(isolated, known[0]), buffered + known[1])
    for group, (isolated, buffered) in found.items():
        yield Series(ISOLATED, (PRODUCER, group), isolated)
        yield Series(BUFFERED, (PRODUCER, group), buffered)


#: The counts of this process.
CLIENT_METRICS: Final = ClientMetrics()
