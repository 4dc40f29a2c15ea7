"""Replication frames on a socket: received in place, sent as they lie. One for each end of a connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from raymq.actors.broker.replication.frames import HEAD_BYTES, FrameHead, ReplicationFrame, check_body, read_head
from raymq.actors.errors import RayMQError
from raymq.actors.wire.same_host import end_pacing

#: What is received goes into a buffer of this size, which grows with a frame that is longer, as its bytes come; once it
#: has doubled a chunk of the log fits.
_BUFFER_BYTES: Final = 544 << 10
#: So much is read at once where no long frame is being received: what is left over of it is moved.
_READ_BYTES: Final = 64 << 10
#: A body up to this size is copied behind its head: one call of the system, and one waking of the other end.
_JOINED_BYTES: Final = 16 << 10
#: So much may be unsent before nothing more is made to be sent, in bytes.
_UNSENT_BYTES: Final = 1 << 20
#: How much the system may hold of what is under way, each way; it takes less where it is told to.
_SOCKET_BYTES: Final = 4 << 20

_log = logging.getLogger(__name__)


class FrameStream(asyncio.BufferedProtocol):
    """One connection. Used on its event loop only.

    Args:
        on_frame: called with each frame; its body is valid during the call only. What it raises ends the connection.
        on_lost: called once when the connection is gone, with why.
        on_made: called when it is there.
        on_room: called when there is room for more to be sent again.
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
        #: Whether there is room for more to be sent.
        self.has_room = False
        #: When something was received last.
        self.heard_at = 0.0
        self.peer = ""

    @property
    def is_open(self) -> bool:
        """Whether frames still come and go."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frame: ReplicationFrame) -> None:
        """Send it; nothing happens once the connection is gone. The body must not change until it is sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(frame.body) > _JOINED_BYTES:
            transport.write(frame.head())
            transport.write(cast("bytes", frame.body))
        else:
            transport.write(frame.encode())

    def close(self, reason: str = "") -> None:
        """Send what is to be sent, and receive nothing any more."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        """End it now."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Hand over no more frames until `go_on`."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Hand over what has come, and go on."""
        self._paused = False
        self.heard_at = asyncio.get_running_loop().time()
        self._hand_over()
        if self.is_open and not self._paused and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=_UNSENT_BYTES // 4)
        own = transport.get_extra_info("socket")
        if own is not None:
            end_pacing(own)
            for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                own.setsockopt(socket.SOL_SOCKET, which, _SOCKET_BYTES)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.peer = f"{host}:{port}"
        self.heard_at = asyncio.get_running_loop().time()
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
        # Of a long frame just the rest, and the head behind it.
        end = max(_READ_BYTES, HEAD_BYTES if self._head is None else self._head.body_bytes + HEAD_BYTES)
        return self._buffer[self._filled : end if end > self._filled else None]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = asyncio.get_running_loop().time()
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
        except Exception as error:  # noqa: BLE001 - the next connection begins anew
            _log.exception("the replication connection with %s ends", self.peer)
            self.abort(repr(error))
            return
        self._keep(used)

    def _serve(self) -> int:
        """Hand over the frames that are whole; how many bytes of the buffer are done with."""
        at = 0
        while self.is_open and not self._paused:
            head = self._head
            if head is None:
                if self._filled - at < HEAD_BYTES:
                    break
                head = self._head = read_head(self._buffer[at : at + HEAD_BYTES])
                at += HEAD_BYTES
            if self._filled - at < head.body_bytes:
                break
            body = self._buffer[at : at + head.body_bytes]
            check_body(head, body)
            self._head = None
            at += head.body_bytes
            self._on_frame(ReplicationFrame(head.kind, head.epoch, head.position, head.confirmed, body))
        return at

    def _keep(self, used: int) -> None:
        """Bring what is left to the buffer's beginning, and make room for the rest of a long frame."""
        rest = self._filled - used
        if rest == 0:
            self._filled = 0
            return
        needed = HEAD_BYTES if self._head is None else self._head.body_bytes + HEAD_BYTES
        size = len(self._buffer)
        if needed > size and rest == size:
            # Twice as much as has come: who announces much and sends little has taken little.
            grown = memoryview(bytearray(min(needed, 2 * size)))
            grown[:rest] = self._buffer[used : self._filled]
            self._buffer = grown
        elif used:
            self._buffer[:rest] = bytes(self._buffer[used : self._filled])
        self._filled = rest
