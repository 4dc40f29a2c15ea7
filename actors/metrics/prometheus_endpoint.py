"""Serve metrics to Prometheus, with RocketMQ's names, on a port of its own.

    /metrics    the metrics, rendered by prometheus_client
    /healthz    200 while the process answers
    /readyz     200 while the process serves its clients, else 503

The port belongs to no access control: whoever reaches it reads the names of topics and groups. It listens on loopback
unless the configuration says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

from raymq.actors.errors import InvalidInput
from raymq.actors.metrics.metric_family import MetricFamily, MetricsSnapshot
from raymq.actors.metrics.page_server import PageAnswer, PageServer
from raymq.storage.histogram import Histogram

#: If a fixed port is taken, as by another broker of the machine, so many after it are tried.
_FURTHER_PORTS: Final = 31
_PAGE: Final = (
    "RayMQ: /metrics /healthz /readyz\n"
    "There is no access control yet: whoever reaches this port can read the names of all topics and groups.\n"
)


class Readiness(NamedTuple):
    """Whether a process serves its clients, and else why not."""

    is_ready: bool
    reason: str = ""


def check_installed() -> None:
    """Raise InvalidInput if prometheus_client is missing."""
    try:
        import prometheus_client  # noqa: F401 - only whether it exists
    except ImportError:
        raise InvalidInput(
            "metrics",
            '"ray" or "off" without prometheus-client',
            "prometheus",
            remedy='pip install "raymq[prometheus]" on every machine of the cluster',
        ) from None


class PrometheusEndpoint:
    """The port. It is open from construction to `close`; requests are answered on threads.

    `collect` and `health` are called on these threads.
    """

    def __init__(
        self, host: str, port: int, collect: Callable[[], MetricsSnapshot], health: Callable[[], Readiness]
    ) -> None:
        """Listen at a port, or at one of the next ones if it is taken.

        Port 0 takes any free one.

        Raises:
            InvalidInput: prometheus_client is missing.
            OSError: no port is free, or the address is not one of this machine.
        """
        check_installed()
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        self._collect = collect
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)

        def metrics(accept: str) -> PageAnswer:
            encode, kind = choose_encoder(accept)
            return PageAnswer(200, encode(registry), kind)

        def ready(_: str) -> PageAnswer:
            is_ready, reason = health()
            return PageAnswer(200, b"ok\n") if is_ready else PageAnswer(503, f"{reason}\n".encode())

        pages = {
            "/metrics": metrics,
            "/healthz": lambda _: PageAnswer(200, b"ok\n"),
            "/readyz": ready,
            "/": lambda _: PageAnswer(200, _PAGE.encode()),
        }
        self._server = PageServer(host, port, pages, _FURTHER_PORTS)
        #: The address "host:port".
        self.address = "{}:{}".format(f"[{host}]" if ":" in host else host, self._server.port)

    def collect(self) -> Iterator[Any]:
        """Return the metrics in the form of prometheus_client."""
        snapshot = self._collect()
        for family in snapshot.families:
            yield as_prometheus(family, dict(snapshot.labels))

    def close(self) -> None:
        """Close the port; requests in progress are not waited for."""
        self._server.close()


def as_prometheus(family: MetricFamily, labels: dict[str, str]) -> Any:
    """Return a family in the form of prometheus_client, each series with `labels`, too."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names = [*labels, *family.labels]
    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    metric: Any = kinds[family.kind](family.name, family.help, labels=names)
    for values, sample in family.samples.items():
        all_values = [*labels.values(), *values]
        if isinstance(sample, Histogram):
            bounds = [*map(str, map(float, sample.bounds)), "+Inf"]
            metric.add_metric(all_values, list(zip(bounds, accumulate(sample.counts), strict=True)), sample.sum)
        else:
            metric.add_metric(all_values, sample)
    return metric
