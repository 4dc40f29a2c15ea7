"""A small HTTP server of read-only pages, for Prometheus and for the probes of an orchestrator."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

#: A client that has begun a request has to complete it within this time.
_REQUEST_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


class PageAnswer(NamedTuple):
    """A page: its status, its bytes, and what they are."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


#: Returns a page for the value of the header `Accept`. It is called on the server's threads.
PageFunction = Callable[[str], PageAnswer]


class PageServer:
    """A server of pages on threads of its own. It is open from construction to `close`."""

    def __init__(self, host: str, port: int, pages: Mapping[str, PageFunction], further_ports: int = 0) -> None:
        """Listen at a port, or at one of the `further_ports` after it if it is taken; port 0 takes any free one.

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

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                answer = PageAnswer(404, f"not found: {' '.join(pages)}\n".encode())
            else:
                answer = page(self.headers.get("Accept", ""))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name of the base class
            _log.debug(format, *arguments)

    return PageHandler


class _Server(ThreadingHTTPServer):
    """A server whose threads end with the process."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)


def _bind(host: str, port: int, further_ports: int, handler: type[BaseHTTPRequestHandler]) -> _Server:
    last = port + further_ports if port else 0
    for each in range(port, last):
        try:
            return _Server((host, each), handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _Server((host, last), handler)
