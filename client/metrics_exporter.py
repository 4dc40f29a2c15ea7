"""Publish the metrics of a process's clients where the process has metrics already.

In a process of Ray they go to Ray's own metrics, every few seconds. Elsewhere, if the program has imported
prometheus_client, they are in its default registry. This module imports neither of them into a program that does not
use it, and opens no port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Final, Protocol

from raymq.actors.metrics.metric_family import MetricsSnapshot
from raymq.client.client_metrics import CLIENT_METRICS, ClientMetrics
from raymq.client.fork_hooks import register_child_reset

#: How often metrics are published. Ray drops a gauge that is not set for some 30 s.
PUBLISH_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class MetricsSink(Protocol):
    """A place where metrics are published."""

    def open(self) -> None:
        """Begin to publish."""

    def publish(self) -> None:
        """Publish the present values."""

    def close(self) -> None:
        """Withdraw what can be withdrawn."""


class PrometheusSink:
    """The default registry of prometheus_client, which reads the values when it is scraped."""

    def __init__(self, prometheus: Any, metrics: ClientMetrics) -> None:
        self._prometheus = prometheus
        self._metrics = metrics

    def open(self) -> None:
        """Add the metrics to the registry."""
        self._prometheus.REGISTRY.register(self)

    def publish(self) -> None:
        """Do nothing: the registry reads the values."""

    def close(self) -> None:
        """Remove the metrics from the registry."""
        with contextlib.suppress(KeyError):  # the program has removed it
            self._prometheus.REGISTRY.unregister(self)

    def describe(self) -> list[Any]:
        """Return [] instead of the metrics, so that the registration reads nothing."""
        return []

    def collect(self) -> Iterable[Any]:
        """Return the metrics in the form of prometheus_client."""
        from raymq.actors.metrics.prometheus_endpoint import as_prometheus

        return [as_prometheus(family, {}) for family in self._metrics.families()]


class RaySink:
    """Ray's metrics of this process, which Ray exports with the prefix `ray_`."""

    def __init__(self, metrics: ClientMetrics) -> None:
        from raymq.actors.ray_exporter import RayExporter  # Ray runs in this process already

        self._exporter = RayExporter()
        self._metrics = metrics

    def open(self) -> None:
        """Do nothing: metrics begin to exist when they are first set."""

    def publish(self) -> None:
        """Increase the counters by what was counted since the last call, and set the gauges."""
        self._exporter.publish(MetricsSnapshot({}, self._metrics.families()))

    def close(self) -> None:
        """Do nothing: Ray drops the gauges by itself, and keeps counters."""


def find_sink(modules: Mapping[str, ModuleType], *, is_forked: bool = False) -> str | None:
    """Return the name of the library that publishes this process's metrics, or None.

    Args:
        modules: the imported modules by name.
        is_forked: the process was forked, and Ray is that of its parent.
    """
    is_initialized = getattr(modules.get("ray"), "is_initialized", None)
    if is_initialized is not None and not is_forked and is_initialized():
        return "ray"
    # Both are missing while the library is being imported.
    prometheus = modules.get("prometheus_client")
    return "prometheus" if hasattr(prometheus, "REGISTRY") and hasattr(prometheus, "metrics_core") else None


class MetricsExporter:
    """Publishes a process's metrics while it has open connections. Any thread may use it."""

    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._publishing = threading.Lock()
        self._sinks: dict[str, MetricsSink] = {}
        self._active: MetricsSink | None = None
        self._published_at = float("-inf")
        self._is_forked = False
        register_child_reset(self, MetricsExporter._reset_in_child)

    def opened(self, connection: object, loop: asyncio.AbstractEventLoop) -> None:
        """Publish from now on, on a connection's loop and as long as it runs."""
        self._open.add(connection)
        loop.call_soon_threadsafe(self._tick, loop)

    def closed(self, connection: object) -> None:
        """Publish the last counts of a connection.

        After the last connection nothing is published any more.
        """
        self._open.discard(connection)
        self.publish(is_last=not self._open)

    def publish(self, *, is_last: bool = False) -> None:
        """Publish the present values, unless another thread does so."""
        if not self._publishing.acquire(blocking=False):
            return
        try:
            self._published_at = time.monotonic()
            self._choose(find_sink(sys.modules, is_forked=self._is_forked) if self._open or is_last else None)
            if self._active is not None:
                self._active.publish()
            if is_last:
                self._choose(None)
        except Exception:  # noqa: BLE001 - metrics must not disturb the clients
            _log.debug("metrics of clients", exc_info=True)
        finally:
            self._publishing.release()

    def _choose(self, name: str | None) -> None:
        """Open the sink of that name, and close the one that was open before."""
        if name is not None and name not in self._sinks:
            self._sinks[name] = self._make_sink(name)
        chosen = None if name is None else self._sinks[name]
        if chosen is not self._active:
            before, self._active = self._active, chosen
            if before is not None:
                before.close()
            if chosen is not None:
                chosen.open()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if time.monotonic() - self._published_at >= PUBLISH_SECONDS / 2 or self._active is None:
            if find_sink(sys.modules, is_forked=self._is_forked) == "ray":
                # Thousands of series take Ray some 0.1 s, and the loop has to go on meanwhile.
                with contextlib.suppress(RuntimeError):  # the program ends: no thread can be started
                    threading.Thread(target=self.publish, name="raymq-metrics").start()
            else:
                self.publish()
        loop.call_later(PUBLISH_SECONDS, self._tick, loop)

    def _make_sink(self, name: str) -> MetricsSink:
        if name == "prometheus":
            return PrometheusSink(sys.modules["prometheus_client"], self._metrics)
        return RaySink(self._metrics)

    def _reset_in_child(self) -> None:
        """Forget the parent's connections and its Ray.

        A registered collector stays, with counts of the child.
        """
        self._open = weakref.WeakSet()
        self._publishing = threading.Lock()
        self._is_forked = True


#: Publishes the metrics of this process.
EXPORTER: Final = MetricsExporter(CLIENT_METRICS)
