"""Receive and send replication frames on a socket, without copying long bodies.

Each end of a connection has one `FrameStream`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final, cast

from raymq.actors.broker.replication.replication_frames import (
    HEAD_BYTES,
    FrameHead,
    ReplicationFrame,
    read_head,
)
from raymq.actors.errors import RayMQError
from raymq.actors.wire.tcp_pacing import disable_tcp_pacing

#: The first size of the receive buffer. It grows with the bytes of a longer frame that have arrived; a buffer
#: doubled once holds a chunk of the log.
_BUFFER_BYTES: Final = 544 << 10
#: The most bytes read at once outside a long frame: an incomplete rest has to be moved.
_READ_BYTES: Final = 64 << 10
#: A body up to this size is copied behind its head: one system call, and one wake-up of the other end.
_JOINED_BYTES: Final = 16 << 10
#: With more unsent bytes than this, no further frames are produced.
_UNSENT_BYTES: Final = 1 << 20
#: The system's socket buffers, each way; the system may be configured to use less.
_SOCKET_BYTES: Final = 4 << 20

_log = logging.getLogger(__name__)


class FrameStream(asyncio.BufferedProtocol):
    """One connection. Used on its event loop only.

    Args:
        on_frame: called with each frame; its body is valid during the call only. An error that it raises ends the
            connection.
        on_lost: called once with the reason when the connection has ended.
        on_made: called when the connection is made.
        on_room: called when there is room to send more again.
    """

    def __init__(
        self,
        on_frame: Callable[[ReplicationFrame], None],
        on_lost: Callable[[str], None],
        *,
        on_made: Callable[[], None] = lambda: None,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._on_room = on_room
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0
        self._head: FrameHead | None = None
        self._reason = ""
        self._paused = False
        #: Whether there is room to send more.
        self.has_room = False
        #: When bytes were last received.
        self.received_at = 0.0
        self.peer = ""

    @property
    def is_open(self) -> bool:
        """Return True while frames can be sent and received."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frame: ReplicationFrame) -> None:
        """Send a frame, or do nothing if the connection has ended.

        The body must not change until it is sent.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(frame.body) > _JOINED_BYTES:
            transport.write(frame.head())
            transport.write(cast("bytes", frame.body))
        else:
            transport.write(frame.encode())

    def close(self, reason: str = "") -> None:
        """Send what is buffered, and receive nothing any more."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        """End the connection now."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Deliver no more frames until `resume`."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Deliver the frames that have arrived, and continue reading."""
        self._paused = False
        self.received_at = monotonic()
        if self.is_open:
            self._hand_over()
        if self.is_open and not self._paused and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=_UNSENT_BYTES // 4)
        own = transport.get_extra_info("socket")
        if own is not None:
            disable_tcp_pacing(own)
            for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                own.setsockopt(socket.SOL_SOCKET, which, _SOCKET_BYTES)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.peer = f"{host}:{port}"
        self.received_at = monotonic()
        self.has_room = True
        self._on_made()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.has_room = False
        self._on_lost(self._reason or (str(error) if error is not None else "the other end has closed"))

    def pause_writing(self) -> None:
        self.has_room = False

    def resume_writing(self) -> None:
        self.has_room = True
        self._on_room()

    def get_buffer(self, _: int) -> memoryview:
        # Of a long frame read only the rest, and the next head.
        end = max(_READ_BYTES, HEAD_BYTES if self._head is None else self._head.body_bytes + HEAD_BYTES)
        return self._buffer[self._filled : end if end > self._filled else None]

    def buffer_updated(self, nbytes: int) -> None:
        self.received_at = monotonic()  # event loops use this clock, too
        self._filled += nbytes
        if not self._paused:
            self._hand_over()

    def _hand_over(self) -> None:
        try:
            used = self._serve()
        except RayMQError as error:
            _log.info("the replication connection with %s ends: %s", self.peer, error)
            if self.is_open:
                self.abort(str(error))
            return
        except Exception as error:  # noqa: BLE001 - the next connection starts over
            _log.exception("the replication connection with %s ends", self.peer)
            self.abort(repr(error))
            return
        self._keep(used)

    def _serve(self) -> int:
        """Deliver the complete frames; return how many bytes of the buffer are consumed."""
        at = 0
        while True:
            head = self._head
            if head is None:
                if self._filled - at < HEAD_BYTES:
                    return at
                head = self._head = read_head(self._buffer, at)
                at += HEAD_BYTES
            end = at + head.body_bytes
            if end > self._filled:
                return at
            self._head = None
            self._on_frame(head.frame(self._buffer[at:end]))
            at = end
            if at == self._filled or self._paused or not self.is_open:
                return at

    def _keep(self, used: int) -> None:
        """Move the incomplete rest to the buffer's beginning; grow it for a long frame."""
        rest = self._filled - used
        if rest == 0:
            self._filled = 0
            return
        needed = HEAD_BYTES if self._head is None else self._head.body_bytes + HEAD_BYTES
        size = len(self._buffer)
        if needed > size and rest == size:
            # Twice what has arrived: a peer that announces much and sends little costs little memory.
            grown = memoryview(bytearray(min(needed, 2 * size)))
            grown[:rest] = self._buffer[used : self._filled]
            self._buffer = grown
        elif used:
            self._buffer[:rest] = bytes(self._buffer[used : self._filled])
        self._filled = rest
