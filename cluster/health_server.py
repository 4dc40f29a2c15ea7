"""Answer the probes of an orchestrator over HTTP: /healthz and /readyz."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from raymq.client import InvalidInput
from raymq.client.consumer_health import Health

#: A client that does not send its request within this time is disconnected.
_REQUEST_SECONDS: Final = 5.0


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
    """An HTTP server on a thread of its own; a context manager.

    Args:
        probes: by path, a function that any thread may call.
        host: "" for all interfaces, where an orchestrator probes.
    """

    def __init__(self, port: int, probes: Mapping[str, Callable[[], ProbeAnswer]], host: str = "") -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS

            def do_GET(self) -> None:
                """Answer one probe."""
                probe = probes.get(self.path.partition("?")[0])
                if probe is None:
                    self.send_error(404)
                    return
                answer = probe()
                body = json.dumps({"ok": answer.ok, **answer.details}).encode()
                self.send_response(200 if answer.ok else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
                """Log nothing: probes come every few seconds."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidInput("--health-port", "a free port", port, remedy="choose another one, or 0") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="raymq-health", daemon=True)

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
