"""Ports that are kept: a service chooses its port once, and comes back to it with every restart.

A port that is chosen freely lies outside the range that the system takes for outgoing connections: else any program
that connects somewhere while a broker is away may have taken its port.

A broker has two: its own, and the one 2 below, which RocketMQ's clients use with their VIP channel on.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from raymq.actors.wire.server import bind

#: How far below a broker's port its VIP channel is; clients compute it.
VIP_DISTANCE = 2
_TRIES = 50
#: Ports below are well known, or used by what runs beside.
_LOWEST = 10_000
_HIGHEST = 65_535
_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")

_log = logging.getLogger(__name__)


def bind_kept(host: str, port: int) -> socket.socket:
    """A socket bound to a name server's port, not yet listening; 0 takes a free one that may be kept.

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
    """Sockets bound to a broker's port and to its VIP channel, in this order, not yet listening.

    Port 0 takes a free one whose VIP channel is free too. A given port is taken without its VIP channel where that is
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
    """Ports to try, at random."""
    low, high = _kept_range()
    for _ in range(_TRIES):
        yield random.randrange(low, high)


def _kept_range() -> tuple[int, int]:
    """Ports from the first on, up to the second: the larger part beside those of outgoing connections."""
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
