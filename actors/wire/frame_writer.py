"""Write commands to a transport, with as few copies and system calls as possible.

How many are possible depends on asyncio and uvloop.
"""

from __future__ import annotations

import asyncio
from collections import deque

from raymq.actors.wire import frame
from raymq.actors.wire.frame import Command

#: Up to this size frames and their pieces are joined into one buffer; above it, copying costs more than further calls.
_JOIN_BYTES = 64 * 1024
#: A large frame is passed to the transport in pieces of this size, each after the socket has accepted the one before,
#: since asyncio copies the bytes that the socket does not accept at once. Each smaller piece would end with a short
#: segment, which TCP's congestion window counts like a full one, and which is acknowledged late.
_PIECE_BYTES = 4 << 20
#: With so many unsent bytes the transport reports that it is full; asyncio's TLS treats 0 as always full.
_FULL_BYTES = 1


class FrameWriter:
    """The writer of the frames of one connection.

    The first frame in an iteration of the event loop is written at once; later ones of the iteration are written
    together. The protocol object that owns the writer calls `pause` and `resume` from its `pause_writing` and
    `resume_writing`.
    """

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        loop: asyncio.AbstractEventLoop,
        max_frame_bytes: int = frame.MAX_FRAME_BYTES,
    ) -> None:
        transport.set_write_buffer_limits(_FULL_BYTES, 0)
        self._transport = transport
        self._loop = loop
        self._max_frame_bytes = max_frame_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._in_turn = False
        self._is_full = False
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes the socket has not accepted yet."""
        return self._held_bytes + self._waiting_bytes + self._transport.get_write_buffer_size()

    def write(self, command: Command) -> None:
        """Write the whole frame of `command`; its buffers must not change until they are sent.

        The bytes that the socket does not accept at once are kept: the buffers themselves for a large frame, copies for
        others.

        Raises:
            ProtocolError: the frame would be longer than `max_frame_bytes`; nothing was written.
        """
        head = frame.encode(command, self._max_frame_bytes)
        body_bytes = command.body_bytes
        if body_bytes > _JOIN_BYTES or self._waiting:
            self._end_held()
            for piece in (head, command.body, *command.pieces):
                if len(piece):
                    self._waiting.append(memoryview(piece))
                    self._waiting_bytes += len(piece)
            self._hand_on()
            return
        whole = b"".join((head, command.body, *command.pieces)) if body_bytes else head
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._end_turn)
            self._transport.write(whole)
            return
        self._held.append(whole)
        self._held_bytes += len(whole)
        if self._held_bytes > _JOIN_BYTES:
            self._end_held()

    @property
    def is_idle(self) -> bool:
        """Return True if this iteration has written nothing and no bytes are unsent."""
        return not (self._in_turn or self._waiting or self._is_full)

    def write_alone(self, whole: bytes) -> None:
        """Write a small frame while idle, if nothing else will be written in this iteration."""
        self._transport.write(whole)

    def pause(self) -> None:
        """Stop passing frames to the transport, because the socket does not accept more."""
        self._is_full = True

    def resume(self) -> None:
        """Continue, because the socket has accepted all bytes that it was given."""
        self._is_full = False
        self._hand_on()

    def _hand_on(self) -> None:
        """Pass waiting pieces to the transport for as long as the socket accepts them."""
        while self._waiting and not self._is_full and not self._transport.is_closing():
            piece = self._waiting.popleft()
            if len(piece) > _PIECE_BYTES:
                self._waiting.appendleft(piece[_PIECE_BYTES:])
                piece = piece[:_PIECE_BYTES]
            self._waiting_bytes -= len(piece)
            self._transport.write(piece)

    def flush(self) -> None:
        """Pass all frames to the transport now, because it is about to be closed."""
        self._end_held()
        while self._waiting:
            self._transport.write(self._waiting.popleft())
        self._waiting_bytes = 0

    def _end_held(self) -> None:
        """Pass the frames that were held for the end of the iteration to the transport."""
        if self._held:
            chunks, self._held, self._held_bytes = self._held, [], 0
            self._transport.write(b"".join(chunks))

    def _end_turn(self) -> None:
        self._in_turn = False
        if not self._transport.is_closing():
            self._end_held()
