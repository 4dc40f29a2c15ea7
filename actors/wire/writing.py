"""Writing commands to a transport, with as few copies and system calls as asyncio and uvloop allow."""

from __future__ import annotations

import asyncio

from raymq.actors.wire import frame
from raymq.actors.wire.frame import Command

#: Up to here frames and their pieces are joined into one buffer; above, copying costs more than further calls.
_JOIN_BYTES = 64 * 1024


class FrameWriter:
    """Writes the frames of one connection. The first of a turn of the loop goes out at once, the others together."""

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._in_turn = False

    def write(self, command: Command) -> None:
        """Write the whole frame of `command`. Nothing of it is needed after the call; its buffers must not change.

        What the socket does not take at once asyncio copies; uvloop and newer versions of asyncio keep the buffers.

        Raises:
            ProtocolError: the frame would be longer than a frame may be; nothing was written.
        """
        head = frame.encode(command)
        body_bytes = command.body_bytes
        if body_bytes > _JOIN_BYTES:
            self.flush()
            self._transport.write(head)
            for piece in (command.body, *command.pieces):
                if len(piece):
                    self._transport.write(memoryview(piece))
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
            self.flush()

    def flush(self) -> None:
        """Hand what is held to the transport now."""
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            self._transport.write(b"".join(held))

    def _end_turn(self) -> None:
        self._in_turn = False
        if not self._transport.is_closing():
            self.flush()
