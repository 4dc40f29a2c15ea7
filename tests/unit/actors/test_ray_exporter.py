"""Test what is published to Ray, with recorded metrics in place of Ray's."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from raymq.actors import ray_exporter
from raymq.actors.metrics.metric_family import MetricFamily, MetricsSnapshot
from raymq.actors.ray_exporter import RayExporter
from raymq.storage.histogram import Histogram


class Recorded:
    """Records what is set or counted, by name and tags."""

    calls: ClassVar[Counter[str]] = Counter()
    values: ClassVar[dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] = ()) -> None:
        self.name, self.keys = name, tag_keys

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert tuple(tags) == self.keys
        self.calls[self.name] += 1
        self.values[self.name, tuple(tags.items())] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0, "Ray refuses 0"
        self.calls[self.name] += 1
        key = self.name, tuple(tags.items())
        self.values[key] = self.values.get(key, 0.0) + value


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    monkeypatch.setattr(ray_exporter.metrics, "Gauge", Recorded)
    monkeypatch.setattr(ray_exporter.metrics, "Counter", Recorded)
    Recorded.calls, Recorded.values = Counter(), {}
    return Recorded


def snapshot(**samples: Any) -> MetricsSnapshot:
    kinds: dict[str, Any] = {"lag": "gauge", "in_total": "counter", "x_seconds": "histogram"}
    families = [
        MetricFamily(f"raymq_{name}", kinds[name], "", ("topic",), {("t",): value}) for name, value in samples.items()
    ]
    return MetricsSnapshot({"node_id": "a"}, families)


TAGS = (("node_id", "a"), ("topic", "t"))


def test_unchanged_gauge_is_set_in_every_third_call(recorded: type[Recorded]) -> None:
    exporter = RayExporter()
    for _ in range(7):
        exporter.publish(snapshot(lag=5.0))
    assert recorded.calls["raymq_lag"] == 3
    exporter.publish(snapshot(lag=6.0))
    assert recorded.values["raymq_lag", TAGS] == 6.0


def test_counter_counts_on_from_its_last_value(recorded: type[Recorded]) -> None:
    exporter = RayExporter()
    for count in (3.0, 3.0, 10.0, 2.0):  # the last one began again
        exporter.publish(snapshot(in_total=count))
    assert recorded.values["raymq_in", TAGS] == 12.0
    assert recorded.calls["raymq_in"] == 3


def test_histogram_is_three_counters(recorded: type[Recorded]) -> None:
    histogram = Histogram([1.0, 10.0])
    exporter = RayExporter()
    for value in (0.5, 5.0):
        histogram.observe(value)
        exporter.publish(snapshot(x_seconds=histogram.copy()))
    found = {(name, dict(tags).get("le")): value for (name, tags), value in recorded.values.items()}
    assert found == {
        ("raymq_x_seconds_bucket", "1.0"): 1.0,
        ("raymq_x_seconds_bucket", "10.0"): 2.0,
        ("raymq_x_seconds_bucket", "+Inf"): 2.0,
        ("raymq_x_seconds_sum", None): 5.5,
        ("raymq_x_seconds_count", None): 2.0,
    }
