"""Describe metrics: families of series, each series with its labels and its value. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raymq.storage.histogram import Histogram

#: The values of a family's labels, in their order.
LabelValues = tuple[str, ...]


@dataclass(slots=True)
class MetricFamily:
    """One metric with the values of all its series.

    Attributes:
        name: the name on `/metrics`; that of a counter ends in `_total`.
        labels: the names of the labels, besides those that all metrics of the process have.
        samples: the value of each series; a `Histogram` in a family of histograms.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    samples: dict[LabelValues, float | Histogram] = field(default_factory=dict)

    @property
    def series(self) -> int:
        """Return how many series Prometheus stores for it."""
        return sum(len(each.counts) + 2 if isinstance(each, Histogram) else 1 for each in self.samples.values())

    @property
    def ray_name(self) -> str:
        """Return the name among Ray's metrics; Ray adds `ray_`, and `_total` to counters."""
        return "raymq_" + self.name.removeprefix("rocketmq_").removeprefix("raymq_").removesuffix("_total")


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The metrics of one process at one time.

    Attributes:
        labels: the labels that all series have.
    """

    labels: Mapping[str, str]
    families: list[MetricFamily]
