"""The two ports of a broker: its own, and the one 2 below, which RocketMQ's clients use with their VIP channel on."""

from __future__ import annotations

import contextlib
import logging
import socket

from raymq.actors.wire.server import bind

#: How far below a broker's port its VIP channel is; clients compute it.
VIP_DISTANCE = 2
_TRIES = 50

_log = logging.getLogger(__name__)


def bind_broker(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to a broker's port and to its VIP channel, in this order, not yet listening.

    Port 0 takes a free one whose VIP channel is free too. A given port is taken without its VIP channel where that is
    not free.

    Raises:
        OSError: the port is taken.
    """
    if port:
        bound = bind(host, port)
        try:
            return [bound, bind(host, port - VIP_DISTANCE)]
        except (OSError, OverflowError) as error:
            _log.warning("no VIP channel: port %d of %s cannot be bound: %s", port - VIP_DISTANCE, host, error)
            return [bound]
    with contextlib.ExitStack() as unfit:  # kept until one fits, so that none is offered twice
        for _ in range(_TRIES):
            bound = bind(host, 0)
            try:
                return [bound, bind(host, int(bound.getsockname()[1]) - VIP_DISTANCE)]
            except OSError:
                unfit.enter_context(bound)
    return [bind(host, 0)]
