"""What a broken connection's peer had sent, and nobody has read yet.

A client that closes its socket while answers lie in it unread, as one does whose last words want no answer, resets the
connection. The next answer then fails to be written, and the transport closes the socket at once; but the system still
holds what came before the reset, in order and whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from raymq.actors.wire.reader import FrameReader


class Unread:
    """The rest of one socket's bytes. Made before its transport closes it; `close` gives the descriptor back."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._descriptor: int | None = None
        accepted = transport.get_extra_info("socket")
        if accepted is None or transport.get_extra_info("sslcontext") is not None:
            return  # what TLS has not decrypted nobody can read any more
        with contextlib.suppress(OSError):  # it is closed already, or no descriptor is left
            self._descriptor = os.dup(accepted.fileno())

    def read_into(self, reader: FrameReader) -> bool:
        """Give the reader one buffer more; whether there was anything."""
        if self._descriptor is None:
            return False
        try:
            count = os.readv(self._descriptor, [reader.buffer()])
        except OSError:  # the reset itself, or nothing at the moment: nothing will come any more
            return False
        if count:
            reader.received(count)
        return count > 0

    def close(self) -> None:
        """Nothing more will be read. May be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
