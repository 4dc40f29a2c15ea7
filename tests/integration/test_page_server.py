"""Test the HTTP server of metrics and probes against clients that are slow, many or ask for heads."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from raymq.actors.metrics import page_server
from raymq.actors.metrics.page_server import PageAnswer, PageServer
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def fails(_: str) -> PageAnswer:
    raise RuntimeError("no figures")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(page_server, "_MOST_CONNECTIONS", 3)
    made = PageServer("127.0.0.1", 0, {"/page": lambda _: PageAnswer(200, b"all is well"), "/bad": fails})
    yield made
    made.close()


def connect(server: PageServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def ask(server: PageServer, method: str, path: str) -> bytes:
    with connect(server) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            return answer.read()


def is_answered(server: PageServer) -> bool:
    try:
        return ask(server, "GET", "/page").endswith(b"all is well")
    except ConnectionError:
        return False


def is_closed(connection: socket.socket, sent: bytes = b"") -> bool:
    """Send some bytes, and return True if the server has closed the connection."""
    connection.settimeout(0.01)
    try:
        if sent:
            connection.sendall(sent)
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(("path", "status"), [("/page", 200), ("/page?a=b", 200), ("/none", 404)])
def test_head_is_answered_without_body(server: PageServer, path: str, status: int) -> None:
    got, _, body = ask(server, "GET", path).partition(b"\r\n\r\n")
    head, _, nothing = ask(server, "HEAD", path).partition(b"\r\n\r\n")
    assert f" {status} ".encode() in head.splitlines()[0]
    assert f"Content-Length: {len(body)}".encode() in head
    assert (body != b"", nothing) == (True, b"")
    assert got.splitlines()[0] == head.splitlines()[0]


@pytest.mark.parametrize("begin", [b"", b"GET /page HTTP/1.1\r\nX: "])
def test_slow_request_is_ended(
    server: PageServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], begin: bytes
) -> None:
    monkeypatch.setattr(page_server, "_REQUEST_SECONDS", 1.0)  # The time-out between two bytes is 10 s as before.
    with connect(server) as slow:
        if begin:
            slow.sendall(begin)
        assert is_answered(server)
        poll_until(lambda: is_closed(slow, b"x"), 20, "the connection is closed")
    poll_until(lambda: threads() == 0, 20, "its thread has ended")
    assert capfd.readouterr().err == ""


def threads() -> int:
    return sum("process_request_thread" in each.name for each in threading.enumerate())


def test_connections_above_the_limit_are_closed(server: PageServer) -> None:
    held = [connect(server) for _ in range(3)]
    poll_until(lambda: threads() == 3, 20, "the connections are open")
    with connect(server) as further:
        poll_until(lambda: is_closed(further), 20, "the connection is closed")
    assert threads() <= 3
    for each in held:
        each.close()
    poll_until(lambda: is_answered(server), 20, "there is room again")


def test_closing_ends_connections_that_wait() -> None:
    server = PageServer("127.0.0.1", 0, {})
    with connect(server) as idle:
        poll_until(lambda: threads() == 1, 20, "the connection is open")
        server.close()
        poll_until(lambda: is_closed(idle), 5, "the connection is closed")


def test_failing_page_is_logged(
    server: PageServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.ERROR, page_server.__name__):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", "/bad")
        with pytest.raises(http.client.RemoteDisconnected):
            connection.getresponse()
        connection.close()
        poll_until(lambda: "no figures" in caplog.text, 20, "the log")
    assert "Traceback" not in capfd.readouterr().err
