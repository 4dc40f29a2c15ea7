"""Answer the probes of an orchestrator over HTTP: /healthz and /readyz."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from raymq.actors.metrics.page_server import PageAnswer, PageServer
from raymq.client import InvalidInput
from raymq.client.consumer_health import Health


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer to a probe: whether all is well, and the details."""

    ok: bool
    details: Mapping[str, Any]


def consumer_liveness(health: Health) -> ProbeAnswer:
    """Return whether a consumer should go on: its listener does not hang, and no part of it fails for long."""
    return ProbeAnswer(health.ok, _details(health))


def consumer_readiness(health: Health) -> ProbeAnswer:
    """Return whether a consumer consumes: it has joined its group, and its brokers answer."""
    return ProbeAnswer(health.running and not any(each.persists for each in health.fetches), _details(health))


def _details(health: Health) -> dict[str, Any]:
    return {
        "running": health.running,
        "hanging": [{"queue": str(each.queue), "seconds": round(each.seconds, 1)} for each in health.hanging],
        "fetches": [{"broker": each.broker, "seconds": round(each.seconds, 1)} for each in health.fetches],
        "failures": [each.work for each in health.failures if each.persists],
        "set_aside": health.set_aside,
    }


class HealthServer:
    """An HTTP server on a thread of its own; a context manager."""

    def __init__(self, port: int, probes: Mapping[str, Callable[[], ProbeAnswer]], host: str = "") -> None:
        """Listen at a port; 0 takes any free one.

        Args:
            probes: by path, a function that any thread may call.
            host: "" for all interfaces, where an orchestrator probes.

        Raises:
            InvalidInput: the port is taken.
        """
        try:
            self._server = PageServer(host, port, {path: partial(_page, probe) for path, probe in probes.items()})
        except (OSError, OverflowError) as error:
            raise InvalidInput("--health-port", "a free port", port, remedy="choose another one, or 0") from error
        #: The port that it listens on.
        self.port = self._server.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()


def _page(probe: Callable[[], ProbeAnswer], _: str) -> PageAnswer:
    answer = probe()
    body = json.dumps({"ok": answer.ok, **answer.details}).encode()
    return PageAnswer(200 if answer.ok else 503, body, "application/json")
