"""Publish metrics through ray.util.metrics, on the port of Ray's own metrics.

Ray prefixes the names with `ray_`, and exports a counter as `..._total`. It reports every 10 s, and a gauge that is not
set again vanishes within 30 s: `publish` has to be called every few seconds.

Ray's histograms take single values, one call each. A histogram is published as three counters instead, as Prometheus
stores it: `NAME_bucket` with the label `le`, `NAME_sum` and `NAME_count`; `histogram_quantile` reads them as any other.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

from ray.util import metrics

from raymq.actors.metrics.metric_family import LabelValues, MetricFamily, MetricsSnapshot
from raymq.storage.histogram import Histogram

#: A gauge that has not changed is set again after so many calls of `publish`, every 5 s.
_REPEAT_CALLS: Final = 3
#: So many values are remembered; beyond that the older half is forgotten. A counter that is published again after it
#: was forgotten is counted from 0.
_MAX_REMEMBERED: Final = 200_000


class RayExporter:
    """The metrics of one process in Ray.

    Used by one thread at a time, in a process that Ray has started.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        #: By name and labels, what was counted or set last, and in which call of `publish`.
        self._last: dict[tuple[str, LabelValues], tuple[float, int]] = {}
        self._calls = 0

    def publish(self, snapshot: MetricsSnapshot) -> None:
        """Set all gauges that have changed, and count what was counted since the last call.

        One value costs Ray some 50 us, so a gauge that has not changed is set again in every third call only.
        """
        self._calls += 1
        if len(self._last) > _MAX_REMEMBERED:
            newest = sorted(self._last.items(), key=lambda item: item[1][1])[_MAX_REMEMBERED // 2 :]
            self._last = dict(newest)
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
            before, called = self._last.get((name, values), (None, 0))
            if sample != before or self._calls - called >= _REPEAT_CALLS:
                self._last[name, values] = sample, self._calls
                tags = dict(zip(labels, values, strict=True))
                self._metric(metrics.Gauge, name, family.help, labels).set(sample, tags)

    def _count(self, name: str, text: str, labels: LabelValues, values: LabelValues, count: float) -> None:
        before, _ = self._last.get((name, values), (0.0, 0))
        self._last[name, values] = count, self._calls
        more = count - before if count >= before else count  # a counter that began again
        if more > 0:
            self._metric(metrics.Counter, name, text, labels).inc(more, dict(zip(labels, values, strict=True)))

    def _metric(self, kind: type[Any], name: str, text: str, labels: LabelValues) -> Any:
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = kind(name, text, tag_keys=labels)
        return found
