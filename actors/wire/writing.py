"""Writing commands to a transport, with as few copies and system calls as asyncio and uvloop allow."""

from __future__ import annotations

import asyncio
from collections import deque

from raymq.actors.wire import frame
from raymq.actors.wire.frame import Command

#: Up to here frames and their pieces are joined into one buffer; above, copying costs more than further calls.
_JOIN_BYTES = 64 * 1024
#: A large frame is handed to the transport in pieces of this, each when the socket has taken the one before: of what
#: the socket does not take at once asyncio makes a copy. Smaller ones would each end with a short segment, which counts
#: in TCP's congestion window like a full one, and is acknowledged late.
_PIECE_BYTES = 4 << 20
#: From how many unsent bytes on the transport says that it is full; asyncio's TLS takes 0 for full at all times.
_FULL_BYTES = 1


class FrameWriter:
    """Writes the frames of one connection. The first of a turn of the loop goes out at once, the others together.

    The protocol that owns it passes on `pause_writing` and `resume_writing`.
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
        """What the socket has not taken yet."""
        return self._held_bytes + self._waiting_bytes + self._transport.get_write_buffer_size()

    def write(self, command: Command) -> None:
        """Write the whole frame of `command`. Its buffers must not change until they are sent.

        What the socket does not take at once is kept: a large frame's buffers themselves, copies of others.

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
        """Whether nothing was written in this turn of the loop, and the socket has taken all that was before."""
        return not (self._in_turn or self._waiting or self._is_full)

    def write_alone(self, whole: bytes) -> None:
        """Write a small frame while idle, where nothing else will be written in this turn."""
        self._transport.write(whole)

    def pause(self) -> None:
        """The socket does not take more."""
        self._is_full = True

    def resume(self) -> None:
        """The socket has taken all that it was given."""
        self._is_full = False
        self._hand_on()

    def _hand_on(self) -> None:
        """Give the transport what waits, as far as the socket takes it."""
        while self._waiting and not self._is_full and not self._transport.is_closing():
            piece = self._waiting.popleft()
            if len(piece) > _PIECE_BYTES:
                self._waiting.appendleft(piece[_PIECE_BYTES:])
                piece = piece[:_PIECE_BYTES]
            self._waiting_bytes -= len(piece)
            self._transport.write(piece)

    def flush(self) -> None:
        """Hand everything to the transport now, which will be closed."""
        self._end_held()
        while self._waiting:
            self._transport.write(self._waiting.popleft())
        self._waiting_bytes = 0

    def _end_held(self) -> None:
        """Hand the frames that were held for the end of the turn to the transport."""
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            self._transport.write(b"".join(held))

    def _end_turn(self) -> None:
        self._in_turn = False
        if not self._transport.is_closing():
            self._end_held()
