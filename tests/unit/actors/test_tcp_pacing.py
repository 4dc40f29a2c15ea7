"""Test that TCP pacing is disabled for connections within a machine only."""

from __future__ import annotations

import socket

import pytest

from raymq.actors.wire.tcp_pacing import disable_tcp_pacing

HERE = ("10.0.0.1", 9876)
Address = tuple[str, int] | str


class Socket:
    def __init__(self, name: Address, peer: Address, control: bytes) -> None:
        self.name = name
        self.peer = peer
        self.control = control

    def getsockname(self) -> Address:
        return self.name

    def getpeername(self) -> Address:
        if not self.peer:
            raise OSError("it is gone")
        return self.peer

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        return self.control.ljust(size, b"\0")

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        self.control = value


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="another system")
@pytest.mark.parametrize(
    ("peer", "control", "then"),
    [
        (("10.0.0.1", 5), b"bbr", b"reno"),
        (("10.0.0.1", 5), b"cubic", b"cubic"),
        (("10.0.0.2", 5), b"bbr", b"bbr"),
        ("", b"bbr", b"bbr"),
    ],
)
def test_pacing_is_disabled_only_within_machine(peer: Address, control: bytes, then: bytes) -> None:
    connected = Socket(HERE, peer, control)
    disable_tcp_pacing(connected)
    assert connected.control == then


def test_transport_without_socket_is_accepted() -> None:
    disable_tcp_pacing(None)


def test_pacing_is_disabled_on_real_sockets() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connected,
    ):
        disable_tcp_pacing(connected)
        if hasattr(socket, "TCP_CONGESTION"):
            assert not connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr")
