"""Cut the bytes of a replication connection into frames, without a socket."""

from __future__ import annotations

from collections.abc import Iterator

from raymq.actors.broker.replication.replication_frames import (
    HEAD_BYTES,
    Buffer,
    FrameHead,
    ReplicationFrame,
    read_head,
)
from raymq.actors.errors import ProtocolError


class ReplicationReader:
    """Cuts a stream of bytes into frames. After an error it returns no more frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: FrameHead | None = None
        self._broken = False

    def feed(self, received: Buffer) -> Iterator[ReplicationFrame]:
        """Yield the frames that are complete with these bytes.

        Consume all of them before the next call.

        Raises:
            ProtocolError: the bytes are no frames, or damaged; close the connection.
        """
        if self._broken:
            raise ProtocolError("this connection violated the protocol before")
        self._buffer += received
        try:
            while (frame := self._next()) is not None:
                yield frame
        except ProtocolError:
            self._broken = True
            self._buffer.clear()
            raise

    def _next(self) -> ReplicationFrame | None:
        if self._head is None:
            if len(self._buffer) < HEAD_BYTES:
                return None
            self._head = read_head(bytes(self._buffer[:HEAD_BYTES]))
            del self._buffer[:HEAD_BYTES]
        head = self._head
        if len(self._buffer) < head.body_bytes:
            return None
        body = bytes(self._buffer[: head.body_bytes])
        del self._buffer[: head.body_bytes]
        self._head = None
        return head.frame(body)
