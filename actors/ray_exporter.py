"""Publish metrics through ray.util.metrics, on the port of Ray's own metrics.

Ray prefixes the names with `ray_`, and exports a counter as `..._total`. It reports every 10 s, and a gauge that is not
set again vanishes within 30 s: `publish` has to be called every few seconds.

Ray's histograms take single values, one call each. A histogram is published as three counters instead, as Prometheus
stores it: `NAME_bucket` with the label `le`, `NAME_sum` and `NAME_count`; `histogram_quantile` reads them as any other.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from ray.util import metrics

from raymq.actors.metrics.metric_family import LabelValues, MetricFamily, MetricsSnapshot
from raymq.storage.histogram import Histogram


class RayExporter:
    """The metrics of one process in Ray. Used by one thread at a time, in a process that Ray has started."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        #: What was counted so far, by name and labels.
        self._counted: dict[tuple[str, LabelValues], float] = {}

    def publish(self, snapshot: MetricsSnapshot) -> None:
        """Set all gauges, and count what was counted since the last call."""
        constant, values = tuple(snapshot.labels), tuple(snapshot.labels.values())
        for family in snapshot.families:
            labels = (*constant, *family.labels)
            for own, sample in family.samples.items():
                self._publish(family, labels, (*values, *own), sample)

    def _publish(
        self, family: MetricFamily, labels: LabelValues, values: LabelValues, sample: float | Histogram
    ) -> None:
        name = family.ray_name
        if isinstance(sample, Histogram):
            bounds = [*map(str, map(float, sample.bounds)), "+Inf"]
            for bound, count in zip(bounds, accumulate(sample.counts), strict=True):
                self._count(f"{name}_bucket", family.help, (*labels, "le"), (*values, bound), count)
            self._count(f"{name}_sum", family.help, labels, values, sample.sum)
            self._count(f"{name}_count", family.help, labels, values, sample.count)
        elif family.kind == "counter":
            self._count(name, family.help, labels, values, sample)
        else:
            self._metric(metrics.Gauge, name, family.help, labels).set(sample, dict(zip(labels, values, strict=True)))

    def _count(self, name: str, text: str, labels: LabelValues, values: LabelValues, count: float) -> None:
        before = self._counted.get((name, values), 0.0)
        more = count - before if count >= before else count  # a counter that began again
        if more > 0:
            self._counted[name, values] = count
            self._metric(metrics.Counter, name, text, labels).inc(more, dict(zip(labels, values, strict=True)))

    def _metric(self, kind: type[Any], name: str, text: str, labels: LabelValues) -> Any:
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = kind(name, text, tag_keys=labels)
        return found
