"""Test the counts of clients, their series and the choice of the library that publishes them."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from raymq.actors import ray_exporter
from raymq.actors.errors import NotStored, OutcomeUnknown
from raymq.actors.sending.send_counts import LATENCY_BOUNDS, TopicSends
from raymq.client import client_metrics
from raymq.client.client_metrics import (
    MAX_SERIES,
    OTHER,
    PRODUCER,
    PUSH_CONSUMER,
    ClientMetrics,
    series_of_topic,
)
from raymq.client.metrics_exporter import PrometheusSink, RaySink, find_sink


def values(metrics: ClientMetrics) -> dict[tuple[str, ...], Any]:
    """Return the value of each series by the name without `_total` and the labels."""
    return {
        (family.name.removesuffix("_total"), *labels): value
        for family in metrics.families()
        for labels, value in family.samples.items()
    }


class GaugedProducer:
    """A producer with fixed gauges."""

    def __init__(self, group: str, isolated: int, buffered: int) -> None:
        self.group = group
        self._gauges = isolated, buffered

    def gauges(self) -> tuple[int, int]:
        return self._gauges


def test_sends_are_counted_by_outcome() -> None:
    metrics = ClientMetrics()
    sends = metrics.sends("g")
    sends.stored("t", 1, 0.0005)
    sends.stored("t", 10, 0.05)
    sends.stored("t", 1, 60.0)
    sends.failed("t", 2, NotStored("no"))
    sends.failed("t", 1, OutcomeUnknown("who knows"))
    sends.failed("t", 1, ValueError())
    sends.retried("t")
    found = values(metrics)
    tags = (PRODUCER, "g", "t")
    assert [found["raymq_client_sends", *tags, outcome] for outcome in ("ok", "not_stored", "unknown")] == [3, 2, 1]
    messages = [found["raymq_client_sent_messages", *tags, outcome] for outcome in ("ok", "not_stored", "unknown")]
    assert messages == [12, 3, 1]
    assert found["raymq_client_send_retries", *tags] == 1
    latency = found["raymq_client_send_seconds", *tags]
    assert latency.bounds == LATENCY_BOUNDS
    assert latency.counts == [1, 0, 0, 1, 0, 0, 1]
    assert latency.sum == pytest.approx(60.0505)


def test_counts_of_one_group_are_added_up() -> None:
    metrics = ClientMetrics()
    for _ in range(2):
        metrics.sends("g").stored("t", 1, 0.1)
    metrics.sends("h").stored("t", 1, 0.1)
    found = values(metrics)
    assert found["raymq_client_sends", PRODUCER, "g", "t", "ok"] == 2
    assert found["raymq_client_sends", PRODUCER, "h", "t", "ok"] == 1


def test_threads_lose_no_counts() -> None:
    metrics = ClientMetrics()
    sends = metrics.sends("g")

    def count() -> None:
        for _ in range(20_000):
            sends.stored("t", 1, 0.1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(metrics)
    assert found["raymq_client_sends", PRODUCER, "g", "t", "ok"] == 80_000
    assert found["raymq_client_send_seconds", PRODUCER, "g", "t"].count == 80_000


@pytest.mark.parametrize("by", ["topic", "group"])
def test_number_of_series_is_limited(by: str) -> None:
    metrics = ClientMetrics()
    for number in range(2 * MAX_SERIES):
        group, topic = ("g", f"t{number}") if by == "topic" else (f"g{number}", "t")
        metrics.sends(group).stored(topic, 1, 0.1)
        metrics.consumed(PUSH_CONSUMER, group, topic).calls += 1
    found = values(metrics)
    sends = {tags: value for tags, value in found.items() if tags[0] == "raymq_client_sends" and tags[-1] == "ok"}
    assert sum(sends.values()) == 2 * MAX_SERIES
    assert sends["raymq_client_sends", PRODUCER, OTHER, OTHER, "ok"] > MAX_SERIES
    calls = [value for tags, value in found.items() if tags[0] == "raymq_client_listener_calls"]
    assert sum(calls) == 2 * MAX_SERIES
    assert exported_series(metrics) <= MAX_SERIES


def test_gauges_are_limited() -> None:
    metrics = ClientMetrics()
    producers = [GaugedProducer(f"g{number}", 0, 0) for number in range(1_000)]
    for producer in producers:
        metrics.watch(producer)
    assert exported_series(metrics) <= MAX_SERIES


def exported_series(metrics: ClientMetrics) -> int:
    return sum(family.series for family in metrics.families())


def test_series_of_a_topic_are_counted_exactly() -> None:
    metrics = ClientMetrics()
    metrics.sends("g").stored("t", 1, 0.1)
    assert exported_series(metrics) == series_of_topic(TopicSends())
    counts = metrics.consumed(PUSH_CONSUMER, "g", "t")
    assert exported_series(metrics) == series_of_topic(TopicSends()) + series_of_topic(counts)


def test_gauges_are_those_of_open_producers() -> None:
    metrics = ClientMetrics()
    first, second, other = GaugedProducer("g", 1, 5), GaugedProducer("g", 2, 7), GaugedProducer("h", 0, 1)
    for producer in (first, second, other):
        metrics.watch(producer)
    found = values(metrics)
    assert found["raymq_client_isolated_brokers", PRODUCER, "g"] == 2
    assert found["raymq_client_buffered_messages", PRODUCER, "g"] == 12
    assert found["raymq_client_buffered_messages", PRODUCER, "h"] == 1
    metrics.unwatch(other)
    del first
    assert values(metrics)["raymq_client_buffered_messages", PRODUCER, "g"] == 7
    assert ("raymq_client_buffered_messages", PRODUCER, "h") not in values(metrics)


def test_names_follow_the_rules_of_both_libraries() -> None:
    families = ClientMetrics().families()
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"raymq_client_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.ray_name == family.name.removesuffix("_total")
        assert family.help.endswith(".")
        assert set(family.labels) <= {"client", "group", "topic", "outcome"}


class RecordedMetric:
    """One metric of Ray, with the rules of Ray 2.60."""

    def __init__(self, kind: str, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.kind = kind
        self.name = name
        self.description = description
        self.tag_keys = tag_keys
        self.values: dict[tuple[str, ...], float] = {}

    def _key(self, tags: dict[str, str]) -> tuple[str, ...]:
        assert tags.keys() == set(self.tag_keys), "Ray raises ValueError"
        return tuple(tags[name] for name in self.tag_keys)

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0, "Ray raises ValueError"
        key = self._key(tags)
        self.values[key] = self.values.get(key, 0) + value

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.values[self._key(tags)] = value


def test_ray_gets_differences_and_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, RecordedMetric] = {}

    def maker(kind: str) -> Callable[..., RecordedMetric]:
        def make(name: str, description: str, tag_keys: tuple[str, ...]) -> RecordedMetric:
            assert name not in made, "one object per name"
            made[name] = RecordedMetric(kind, name, description, tag_keys)
            return made[name]

        return make

    metrics = ClientMetrics()
    monkeypatch.setattr(ray_exporter, "metrics", SimpleNamespace(Counter=maker("Counter"), Gauge=maker("Gauge")))
    sink = RaySink(metrics)
    sends = metrics.sends("g")
    sends.stored("t", 1, 0.05)
    producer = GaugedProducer("g", 0, 3)
    metrics.watch(producer)
    for _ in range(2):
        sink.publish()
    sends.stored("t", 4, 0.05)
    sink.publish()
    tags = (PRODUCER, "g", "t")
    assert made["raymq_client_sends"].values == {(*tags, "ok"): 2}
    assert made["raymq_client_sent_messages"].values == {(*tags, "ok"): 5}
    assert made["raymq_client_send_seconds_bucket"].values == {(*tags, le): 2 for le in ("0.1", "0.5", "3.0", "+Inf")}
    assert made["raymq_client_send_seconds_sum"].values == {tags: pytest.approx(0.1)}
    assert made["raymq_client_send_seconds_count"].values == {tags: 2}
    assert made["raymq_client_buffered_messages"].kind == "Gauge"
    assert made["raymq_client_buffered_messages"].values == {(PRODUCER, "g"): 3}
    assert "raymq_client_send_retries" not in made


def test_prometheus_shows_all_kinds() -> None:
    metrics = ClientMetrics()
    registry = CollectorRegistry()
    sink = PrometheusSink(SimpleNamespace(REGISTRY=registry, metrics_core=prometheus_client.metrics_core), metrics)
    metrics.sends("g").stored("t", 1, 0.05)
    metrics.consumed(PUSH_CONSUMER, "g", "%RETRY%g").seconds += 1.5
    producer = GaugedProducer("g", 0, 3)
    metrics.watch(producer)
    sink.open()
    text = generate_latest(registry).decode()
    tags = 'client="producer",group="g",topic="t"'
    assert 'raymq_client_sends_total{client="producer",group="g",outcome="ok",topic="t"} 1.0' in text
    assert 'raymq_client_send_seconds_bucket{client="producer",group="g",le="0.1",topic="t"} 1.0' in text
    assert f"raymq_client_send_seconds_sum{{{tags}}} 0.05" in text
    assert 'raymq_client_listener_seconds_total{client="push_consumer",group="g",topic="%RETRY%g"} 1.5' in text
    assert 'raymq_client_buffered_messages{client="producer",group="g"} 3.0' in text
    for _ in range(2):
        sink.close()
    assert generate_latest(registry) == b""


def module(**attributes: object) -> ModuleType:
    return cast("ModuleType", SimpleNamespace(**attributes))


_PROMETHEUS = module(REGISTRY=1, metrics_core=2)
_RAY = module(is_initialized=lambda: True)


@pytest.mark.parametrize(
    ("modules", "is_forked", "expected"),
    [
        ({}, False, None),
        ({"prometheus_client": _PROMETHEUS}, False, "prometheus"),
        ({"prometheus_client": module()}, False, None),
        ({"ray": module()}, False, None),
        ({"ray": module(is_initialized=lambda: False)}, False, None),
        ({"ray": module(is_initialized=lambda: False), "prometheus_client": _PROMETHEUS}, False, "prometheus"),
        ({"ray": _RAY}, False, "ray"),
        ({"ray": _RAY, "prometheus_client": _PROMETHEUS}, False, "ray"),
        ({"ray": _RAY}, True, None),
        ({"ray": _RAY, "prometheus_client": _PROMETHEUS}, True, "prometheus"),
    ],
)
def test_sink_is_a_library_that_the_program_uses(
    modules: dict[str, ModuleType], is_forked: bool, expected: str | None
) -> None:
    assert find_sink(modules, is_forked=is_forked) == expected


def test_forked_child_counts_from_zero() -> None:
    metrics = ClientMetrics()
    sends = metrics.sends("g")
    sends.stored("t", 1, 0.1)
    metrics.consumed(PUSH_CONSUMER, "g", "t").calls += 1
    metrics.watch(producer := GaugedProducer("g", 0, 3))
    metrics._reset_in_child()
    assert producer.gauges() == (0, 3)
    sends.stored("t", 1, 0.1)
    found = values(metrics)
    assert found["raymq_client_sends", PRODUCER, "g", "t", "ok"] == 1
    assert found["raymq_client_listener_calls", PUSH_CONSUMER, "g", "t"] == 0
    assert ("raymq_client_buffered_messages", PRODUCER, "g") not in found


def test_series_have_a_value_for_each_label() -> None:
    metrics = ClientMetrics()
    metrics.sends("g").stored("t", 1, 0.1)
    metrics.consumed(PUSH_CONSUMER, "g", "t").calls += 1
    assert all(len(labels) == len(family.labels) for family in metrics.families() for labels in family.samples)
    assert client_metrics.CLIENT_METRICS is sys.modules["raymq.client.client_metrics"].CLIENT_METRICS
