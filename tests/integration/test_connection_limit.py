"""Test that connections are limited by the process's open files, of which some are reserved for the store."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from raymq.actors.wire.frame import Command
from tests.integration import crowded_server
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until


@pytest.fixture
def address() -> Iterator[str]:
    script = [sys.executable, "-m", crowded_server.__name__]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def connect(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    return [socket.create_connection((host, int(port))) for _ in range(count)]


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return client.recv(1) != b""
    return True


def count_refused(address: str) -> int | None:
    """Return the number of refused connections so far; None if this connection is refused, too."""
    try:
        with ForeignClient(address) as client:
            return int(client.done(Command(1)).fields["refused"])
    except ConnectionError:
        return None


def test_excess_connections_are_closed_and_counted(address: str) -> None:
    """Fault 13.24: a broker accepted connections until it could not open its next log file."""
    with ForeignClient(address) as first:
        clients = connect(address, crowded_server.FILES + 50)
        poll_until(lambda: int(first.done(Command(1)).fields["refused"]) > 50)
        poll_until(lambda: len(list(filter(is_open, clients))) < crowded_server.FILES - crowded_server.OPENED)
        assert len(list(filter(is_open, clients))) > crowded_server.FILES // 3
        for client in clients:
            client.close()
        poll_until(lambda: count_refused(address) is not None, what="there is room again")
