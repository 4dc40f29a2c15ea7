"""Persistent ports: a service chooses its port once, and uses it again after each restart.

A freely chosen port lies outside the system's range for outgoing connections. Otherwise any program that opens a
connection while a broker is down could take the broker's port.

A broker has two ports: its own, and the one 2 below it, which RocketMQ's clients use if their VIP channel is on.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from raymq.actors.wire.server import bind

#: The distance of a broker's VIP channel below its port; clients compute the VIP port from it.
VIP_DISTANCE = 2
_TRIES = 50
#: Ports below are well known, or likely to be used by other programs.
_LOWEST = 10_000
_HIGHEST = 65_535
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")

_log = logging.getLogger(__name__)


def bind_persistent_port(host: str, port: int) -> socket.socket:
    """Return a socket bound to a name server's port, not yet listening.

    Port 0 takes a free port that may be kept.

    Raises:
        OSError: the port is taken.
    """
    if port:
        return _bind(host, port)
    for candidate in _candidates():
        with contextlib.suppress(OSError):
            return bind(host, candidate, is_chosen=True)
    return bind(host, 0)


def bind_broker(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to a broker's port and its VIP channel, not yet listening.

    Port 0 takes a free port whose VIP channel is free as well. A given port is taken without its VIP channel if that is
    not free.

    Raises:
        OSError: the port is taken.
    """
    if port:
        bound = _bind(host, port)
        try:
            return [bound, bind(host, port - VIP_DISTANCE)]
        except (OSError, OverflowError) as error:
            _log.warning("no VIP channel: port %d of %s cannot be bound: %s", port - VIP_DISTANCE, host, error)
            return [bound]
    for candidate in _candidates():
        with contextlib.ExitStack() as unfit, contextlib.suppress(OSError):
            bound = unfit.enter_context(bind(host, candidate, is_chosen=True))
            below = bind(host, candidate - VIP_DISTANCE, is_chosen=True)
            unfit.pop_all()
            return [bound, below]
    return [bind(host, 0)]


def _candidates() -> Iterator[int]:
    """Yield random ports to try."""
    low, high = _kept_range()
    for _ in range(_TRIES):
        yield random.randrange(low, high)


def _kept_range() -> tuple[int, int]:
    """Return the range of ports to choose from, without its end.

    It is the larger one of the two ranges beside that of outgoing connections.
    """
    try:
        first, last = map(int, _OUTGOING_PORTS.read_text("ascii").split())
    except (OSError, ValueError):
        first, last = 32_768, 60_999
    below, above = (_LOWEST, first), (last + 1, _HIGHEST)
    low, high = max(below, above, key=lambda each: each[1] - each[0])
    return (low, high) if high - low > _TRIES else (_LOWEST, _HIGHEST)


def _bind(host: str, port: int) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from error
