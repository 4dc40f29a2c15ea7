"""The unread bytes that the peer of a broken connection had sent.

A client that closes its socket while unread answers are in it resets the connection; a client does so, for example, if
its last requests are one-way. The server's next answer then cannot be written, and the transport closes the socket at
once. But the operating system still holds the bytes that arrived before the reset, in order and complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from raymq.actors.wire.frame_reader import FrameReader


class ResidualBytes:
    """The unread bytes of one socket.

    Create it before the transport closes the socket; `close` releases the descriptor.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._descriptor: int | None = None
        accepted = transport.get_extra_info("socket")
        if accepted is None or transport.get_extra_info("sslcontext") is not None:
            return  # bytes that TLS has not decrypted are lost
        with contextlib.suppress(OSError):  # the socket is closed already, or no descriptor is left
            self._descriptor = os.dup(accepted.fileno())

    def read_into(self, reader: FrameReader) -> bool:
        """Read up to one buffer of bytes into `reader`; return True if there were any."""
        if self._descriptor is None:
            return False
        try:
            count = os.readv(self._descriptor, [reader.buffer()])
        except OSError:  # the reset itself, or no bytes: nothing more will arrive
            return False
        if count:
            reader.received(count)
        return count > 0

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
