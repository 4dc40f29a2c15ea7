"""Collect the metrics of a process every few seconds, and publish them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Final, Protocol

from raymq.actors.errors import RayMQError
from raymq.actors.metrics.metric_family import MetricsSnapshot
from raymq.actors.metrics.prometheus_endpoint import PrometheusEndpoint, Readiness

#: A gauge of Ray that is not set again vanishes within 30 s.
PUBLISH_SECONDS: Final = 5.0
#: A scrape waits at most this long for the process's loop.
_COLLECT_SECONDS: Final = 10.0
#: Collecting takes at most one part in so many of the loop's time.
_SHARE: Final = 50
_log = logging.getLogger(__name__)


class Exporter(Protocol):
    """Publishes metrics elsewhere."""

    def publish(self, snapshot: MetricsSnapshot) -> None:
        """Publish all metrics. It may block, and is called on a thread of its own."""


class MetricsPublisher:
    """Publishes metrics while it runs. Created, started and stopped on its event loop.

    Scrapes of the endpoint read the newest metrics if the loop has time for it, else the last ones.
    """

    def __init__(
        self,
        collect: Callable[[], Awaitable[MetricsSnapshot]],
        health: Callable[[], Readiness],
        exporter: Exporter | None = None,
    ) -> None:
        """Create a publisher; without an `exporter` only the endpoint shows the metrics."""
        self._collect = collect
        self._health = health
        self._exporter = exporter
        self._loop = asyncio.get_running_loop()
        self._last: MetricsSnapshot | None = None
        self._next_collection = 0.0
        self._collecting: asyncio.Task[MetricsSnapshot] | None = None
        self._task: asyncio.Task[None] | None = None
        self._endpoint: PrometheusEndpoint | None = None

    @property
    def address(self) -> str:
        """Return the address of the endpoint, "host:port"; empty without one."""
        return "" if self._endpoint is None else self._endpoint.address

    async def listen(self, host: str, port: int) -> None:
        """Open the endpoint; raise as `PrometheusEndpoint`."""
        self._endpoint = await asyncio.to_thread(PrometheusEndpoint, host, port, self._scraped, self._health)

    def start(self) -> None:
        """Begin to publish, if there is an exporter."""
        if self._exporter is not None:
            self._task = self._loop.create_task(self._keep_publishing(self._exporter))

    async def stop(self) -> None:
        """End publishing, and close the endpoint."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)

    async def snapshot(self) -> MetricsSnapshot:
        """Return the metrics: new ones, or the last ones if collecting would take too much of the loop's time.

        Callers at the same time share one collection.
        """
        if self._last is not None and self._loop.time() < self._next_collection:
            return self._last
        if self._collecting is None or self._collecting.done():
            self._collecting = self._loop.create_task(self._collect_timed())
        return await asyncio.shield(self._collecting)

    async def _collect_timed(self) -> MetricsSnapshot:
        began = self._loop.time()
        self._last = last = await self._collect()
        self._next_collection = self._loop.time() + _SHARE * (self._loop.time() - began)
        return last

    async def _keep_publishing(self, exporter: Exporter) -> None:
        while True:
            try:
                await asyncio.to_thread(exporter.publish, await self.snapshot())
            except Exception as error:  # noqa: BLE001 - metrics must not end the process
                _log.warning("metrics could not be published: %s: %s", type(error).__name__, error)
            await asyncio.sleep(PUBLISH_SECONDS)

    def _scraped(self) -> MetricsSnapshot:
        """Return the metrics on a thread of the endpoint."""
        with contextlib.suppress(TimeoutError, CancelledError, RuntimeError, RayMQError):  # the process may be ending
            return asyncio.run_coroutine_threadsafe(self.snapshot(), self._loop).result(_COLLECT_SECONDS)
        return self._last or MetricsSnapshot({}, [])
