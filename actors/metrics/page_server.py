"""A small HTTP server of read-only pages, for Prometheus and an orchestrator's probes."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

from raymq.actors.metrics.http_connections import HttpConnections

#: A client has to complete its request within this time after it has connected, and then to take the answer.
_REQUEST_SECONDS: Final = 10.0
#: Further connections are closed at once: each has a thread.
_MOST_CONNECTIONS: Final = 32
_log = logging.getLogger(__name__)


class PageAnswer(NamedTuple):
    """A page: its status, its bytes, and what they are."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


#: Returns a page for the value of the header `Accept`. It is called on the server's threads.
PageFunction = Callable[[str], PageAnswer]


class PageServer:
    """A server of pages on threads of its own.

    It is open from construction to `close`.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, PageFunction], further_ports: int = 0) -> None:
        """Listen at a port, or at one of `further_ports` behind it; 0: any.

        Args:
            pages: the pages by path, such as "/metrics".

        Raises:
            OSError, OverflowError: no port is free, or the address is not one of this machine.
        """
        self._server = _bind(host, port, further_ports, _handler(pages))
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="raymq-pages", daemon=True).start()

    def close(self) -> None:
        """Close the port; requests in progress are not waited for."""
        self._server.shutdown()
        self._server.server_close()


def _handler(pages: Mapping[str, PageFunction]) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers the requests."""

    class PageHandler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS
        server: _Server

        def do_GET(self) -> None:
            self.wfile.write(self._answer())

        def do_HEAD(self) -> None:
            self._answer()

        def _answer(self) -> bytes:
            """Send the head of the answer, and return its body."""
            self.server.connections.request_read(self.connection)
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                answer = PageAnswer(404, f"not found: {' '.join(pages)}\n".encode())
            else:
                answer = page(self.headers.get("Accept", ""))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            return answer.body

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name of the base class
            _log.debug(format, *arguments)

    return PageHandler


class _Server(ThreadingHTTPServer):
    """A server whose threads end with the process.

    It closes connections that take too long to ask; socketserver's own time-out begins anew with each byte.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.connections: HttpConnections[Any] = HttpConnections(_MOST_CONNECTIONS)
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - as in the base class
        """Return False if there are too many connections; this one is then closed."""
        return self.connections.admit(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection; its thread calls this at its end."""
        self.connections.forget(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End the connections that have taken too long; `serve_forever` calls this twice a second."""
        self._end_waiting(_REQUEST_SECONDS)

    def server_close(self) -> None:
        """Close the port and the connections that have not asked yet."""
        super().server_close()
        self._end_waiting(0.0)

    def _end_waiting(self, seconds: float) -> None:
        for connection in self.connections.waiting(seconds):
            with contextlib.suppress(OSError):  # Its thread has closed it meanwhile.
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as in the base class
        """Log what a thread has raised; a client that has gone is nothing to report."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _log.log(level, "the request of %s failed", client_address, exc_info=True)


def _bind(host: str, port: int, further_ports: int, handler: type[BaseHTTPRequestHandler]) -> _Server:
    last = port + further_ports if port else 0
    for each in range(port, last):
        try:
            return _Server((host, each), handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _Server((host, last), handler)
