"""What a connection within one machine can do without: pacing.

Some congestion controls, BBR above all, send by the clock, so as not to fill the queues of the lines ahead. Within a
machine there is no line, and the timers cost more than a third of what the two processes could move.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

#: Congestion controls whose names begin so send by the clock; others are left as they are.
_PACED: Final = b"bbr"
#: Every Linux has it, and everybody may choose it.
_UNPACED: Final = b"reno"
_NAME_BYTES: Final = 16


def end_pacing(connected: Any) -> None:
    """Have a connection whose ends have one address send as fast as it can; a socket, or what asyncio shows of one.

    Nothing changes where it need not or cannot.
    """
    option = getattr(socket, "TCP_CONGESTION", None)  # Linux has it
    if connected is None or option is None:
        return
    with contextlib.suppress(OSError):  # the other end may be gone
        if connected.getsockname()[:1] != connected.getpeername()[:1]:
            return
        if connected.getsockopt(socket.IPPROTO_TCP, option, _NAME_BYTES).startswith(_PACED):
            connected.setsockopt(socket.IPPROTO_TCP, option, _UNPACED)
