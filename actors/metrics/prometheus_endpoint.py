"""Serve metrics to Prometheus, with RocketMQ's names, on a port of its own.

    /metrics    the metrics, rendered by prometheus_client
    /healthz    200 while the process answers
    /readyz     200 while the process serves its clients, else 503

The port belongs to no access control: whoever reaches it reads the names of topics and groups. It listens on loopback
unless the configuration says otherwise.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any, Final, NamedTuple

from raymq.actors.errors import InvalidInput
from raymq.actors.metrics.metric_family import MetricFamily, MetricsSnapshot
from raymq.storage.histogram import Histogram

#: A fixed port that is taken, as by another broker of the machine, is followed by this many others.
_PORTS: Final = 32
#: A client that has begun a request has to complete it within this time.
_REQUEST_SECONDS: Final = 10.0
_PAGE: Final = (
    "RayMQ: /metrics /healthz /readyz\n"
    "There is no access control yet: whoever reaches this port can read the names of all topics and groups.\n"
)
_log = logging.getLogger(__name__)


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
        """Listen at a port, or at one of the next ones if it is taken; port 0 takes any free one.

        Raises:
            InvalidInput: prometheus_client is missing.
            OSError: no port is free, or the address is not one of this machine.
        """
        check_installed()
        from prometheus_client import CollectorRegistry

        self._collect = collect
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._server = _bind(host, port, _handler(self._registry, health))
        #: The address "host:port".
        self.address = "{}:{}".format(f"[{host}]" if ":" in host else host, self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="raymq-metrics", daemon=True)
        self._thread.start()

    def collect(self) -> Iterator[Any]:
        """Return the metrics in the form of prometheus_client."""
        snapshot = self._collect()
        for family in snapshot.families:
            yield as_prometheus(family, dict(snapshot.labels))

    def close(self) -> None:
        """Close the port; requests in progress are not waited for."""
        self._server.shutdown()
        self._server.server_close()


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


def _handler(registry: Any, health: Callable[[], Readiness]) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers the requests."""
    from prometheus_client.exposition import choose_encoder

    class Handler(BaseHTTPRequestHandler):
        """Answers one connection."""

        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._send(200, encode(registry), kind)
            elif path == "/healthz":
                self._send(200, b"ok\n")
            elif path == "/readyz":
                ready, reason = health()
                self._send(200 if ready else 503, b"ok\n" if ready else f"{reason}\n".encode())
            elif path == "/":
                self._send(200, _PAGE.encode())
            else:
                self._send(404, b"not found: /metrics /healthz /readyz\n")

        def _send(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name of the base class
            _log.debug(format, *arguments)

    return Handler


class _Server(ThreadingHTTPServer):
    """A server whose threads end with the process."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        import socket

        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)


def _bind(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> _Server:
    for each in range(port, port + _PORTS) if port else (0,):
        try:
            return _Server((host, each), handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or each == port + _PORTS - 1 or not port:
                raise
    raise AssertionError("the last port raises its error")
