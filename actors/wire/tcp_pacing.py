"""Disable TCP pacing on connections within one machine.

Some congestion controls, above all BBR, send packets at timed intervals, so as not to fill the queues of the network.
Within a machine there is no network, and the timers cost more than a third of the possible throughput between two
processes.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

#: Congestion controls whose names begin so pace their packets; others are left unchanged.
_PACED: Final = b"bbr"
#: Every Linux has this congestion control, and unprivileged processes may select it.
_UNPACED: Final = b"reno"
_NAME_BYTES: Final = 16


def disable_tcp_pacing(connected: Any) -> None:
    """Disable pacing on a connection whose two ends have the same IP address.

    `connected` is a socket, or asyncio's view of one. Do nothing if pacing is not used or cannot be changed.
    """
    option = getattr(socket, "TCP_CONGESTION", None)  # available on Linux only
    if connected is None or option is None:
        return
    with contextlib.suppress(OSError):  # the peer may have disconnected
        if connected.getsockname()[:1] != connected.getpeername()[:1]:
            return
        if connected.getsockopt(socket.IPPROTO_TCP, option, _NAME_BYTES).startswith(_PACED):
            connected.setsockopt(socket.IPPROTO_TCP, option, _UNPACED)
