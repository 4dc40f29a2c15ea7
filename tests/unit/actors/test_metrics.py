"""Test metrics without a broker: which series are published, and how Prometheus sees them."""

from __future__ import annotations

import math

import pytest

from raymq.actors.metrics.metric_family import MetricFamily
from raymq.actors.metrics.prometheus_endpoint import as_prometheus
from raymq.actors.metrics.series_limit import OtherCounter, largest
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.histogram import Histogram


def test_histogram_counts_a_value_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram([1.0, 10.0])
    for value in (0.5, 1.0, 1.5, 10.0, 11.0):
        histogram.observe(value)
    histogram.observe_times(2.0, 3)
    assert (histogram.counts, histogram.count, histogram.sum) == ([2, 5, 1], 8, 30.0)
    copied = histogram.copy()
    for _ in range(5_000):
        histogram.observe(100.0)
    assert (histogram.counts, copied.counts) == ([2, 5, 5_001], [2, 5, 1])


def test_largest_subjects_are_named() -> None:
    assert largest({"a": 1, "b": 3, "c": 2}, 2) == {"b", "c"}
    assert largest({"b": 1, "a": 1}, 1) == {"b"}
    assert largest({"a": 1}, 5) == {"a"}
    assert largest({"a": 1, "b": 1}, 0) == set()


def test_sum_of_others_never_falls() -> None:
    other = OtherCounter[str]()

    def update(named: set[str], **counts: float) -> float:
        return run_steps(other.update_steps(counts, named))

    assert update({"a"}, a=5.0, b=2.0) == 2.0
    assert update({"a"}, a=6.0, b=3.0) == 3.0
    assert update({"b"}, a=9.0, b=3.0) == 3.0, "a counts here from now on"
    assert update({"b"}, a=11.0, b=3.0) == 5.0
    assert update({"a", "b"}, a=20.0, b=4.0) == 5.0
    assert update({"b"}, a=21.0, b=4.0) == 5.0, "a had series of its own meanwhile"
    assert update({"b"}, a=22.0, b=4.0) == 6.0
    assert update(set()) == 6.0


@pytest.mark.parametrize(
    ("name", "ray_name"),
    [
        ("rocketmq_messages_in_total", "raymq_messages_in"),
        ("raymq_loop_stop_seconds", "raymq_loop_stop_seconds"),
        ("rocketmq_storage_size_bytes", "raymq_storage_size_bytes"),
    ],
)
def test_names_in_ray_have_no_total(name: str, ray_name: str) -> None:
    assert MetricFamily(name, "gauge", "").ray_name == ray_name


def test_prometheus_sees_cumulative_buckets() -> None:
    histogram = Histogram([1.0, 10.0])
    for value in (0.5, 5.0, 50.0):
        histogram.observe(value)
    family = MetricFamily("raymq_x_seconds", "histogram", "X.", ("topic",), {("t",): histogram})
    samples = {
        (each.name, each.labels.get("le")): each.value for each in as_prometheus(family, {"node_id": "a"}).samples
    }
    assert samples == {
        ("raymq_x_seconds_bucket", "1.0"): 1.0,
        ("raymq_x_seconds_bucket", "10.0"): 2.0,
        ("raymq_x_seconds_bucket", "+Inf"): 3.0,
        ("raymq_x_seconds_count", None): 3.0,
        ("raymq_x_seconds_sum", None): 55.5,
    }
    assert family.series == len(samples)
    assert math.isclose(histogram.sum, 55.5)
