"""Test a broker's port and its VIP channel with real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from raymq import actors
from raymq.actors.ports import VIP_DISTANCE, bind_broker
from raymq.actors.wire.server import bind

HOST = "127.0.0.1"


@pytest.fixture
def open_sockets() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def ports(open_sockets: contextlib.ExitStack, port: int) -> list[int]:
    return [int(open_sockets.enter_context(bound).getsockname()[1]) for bound in bind_broker(HOST, port)]


def test_chosen_port_has_free_vip_channel(open_sockets: contextlib.ExitStack) -> None:
    for _ in range(5):
        own, vip = ports(open_sockets, 0)
        assert own - vip == VIP_DISTANCE


def test_bound_port_without_listener_is_not_chosen(
    open_sockets: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevent two processes from choosing a port on which only one can listen."""
    own, vip = ports(open_sockets, 0)
    free = own + 10 if own < 60_000 else own - 10
    monkeypatch.setattr(actors.ports, "_candidates", lambda: iter([own, own + VIP_DISTANCE, vip, free]))
    assert ports(open_sockets, 0)[0] == free
    assert (
        int(open_sockets.enter_context(actors.ports.bind_persistent_port(HOST, 0)).getsockname()[1])
        == own + VIP_DISTANCE
    )


def test_given_port_is_bound_with_its_vip_channel(open_sockets: contextlib.ExitStack) -> None:
    with contextlib.ExitStack() as before:
        own, vip = ports(before, 0)
    assert ports(open_sockets, own) == [own, vip]


def test_given_port_is_bound_without_a_taken_vip_channel(open_sockets: contextlib.ExitStack) -> None:
    with contextlib.ExitStack() as before:
        own, vip = ports(before, 0)
    open_sockets.enter_context(bind(HOST, vip)).listen()
    assert ports(open_sockets, own) == [own]


def test_taken_port_raises_os_error(open_sockets: contextlib.ExitStack) -> None:
    taken = open_sockets.enter_context(bind(HOST, 0))
    taken.listen()
    with pytest.raises(OSError, match="in use"):
        bind_broker(HOST, int(taken.getsockname()[1]))
