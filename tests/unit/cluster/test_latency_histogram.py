"""Test the percentiles of latencies."""

from __future__ import annotations

import pytest

from raymq.cluster.bench.latency_histogram import LatencyHistogram


def test_percentiles_are_within_a_percent() -> None:
    histogram = LatencyHistogram()
    for number in range(1, 10_001):
        histogram.add(number / 1000)
    for percent, exact in ((50, 5.0), (99, 9.9), (99.9, 9.99), (100, 10.0)):
        assert histogram.percentile(percent) == pytest.approx(exact, rel=0.011)
    assert histogram.summary()["max"] == 10.0


def test_empty_histogram_has_no_percentiles() -> None:
    assert LatencyHistogram().summary() == {"p50": None, "p99": None, "p99.9": None, "max": None}


def test_merged_histograms_count_everything() -> None:
    parts = [LatencyHistogram() for _ in range(2)]
    parts[0].add(0.001, times=99)
    parts[1].add(2.0)
    whole = LatencyHistogram()
    whole.merge(parts)
    assert (whole.count, whole.longest) == (100, 2.0)
    assert whole.percentile(99) == pytest.approx(0.001, rel=0.011)
    assert whole.percentile(100) == pytest.approx(2.0)


def test_durations_below_a_microsecond_count() -> None:
    histogram = LatencyHistogram()
    histogram.add(0.0)
    assert histogram.percentile(50) == 0.0
