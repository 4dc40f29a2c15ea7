"""Cut a byte stream into commands.

Bytes arrive in a buffer that the reader provides. It is a scratch buffer that all connections of one event loop share,
or, once `_OWN_BYTES` of a large frame have arrived, a buffer of that frame's own. The own buffer grows fourfold as it
fills, so that a connection holds about as many bytes as have arrived and not as many as were announced, and at most a
third of a large body is copied.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator

from raymq.actors.errors import ProtocolError
from raymq.actors.wire.frame import LENGTH, MAX_FRAME_BYTES, MAX_JSON_ANSWER_BYTES, Buffer, Command, decode

#: A frame above this that has not arrived completely counts as large.
_LARGE_BYTES = 16 * 1024
#: A large frame gets a buffer of its own when so many of its bytes have arrived.
_OWN_BYTES = 64 * 1024
#: The own buffer of a frame is at most so many times as long as the bytes that have arrived.
_GROWTH = 4
#: The most bytes of one read, except for large frames.
SCRATCH_BYTES = 256 * 1024


def make_scratch() -> memoryview:
    """Return a buffer that the readers of one event loop share."""
    return memoryview(bytearray(SCRATCH_BYTES))


def _memory(count: int) -> memoryview:
    """Return memory for a large frame, whose pages are allocated as they are written.

    The memory comes from Arrow's pool if pyarrow is loaded, since the pool still has the pages of the last frame. A
    process without pyarrow, such as a name server, does not load it only because a peer sends a large frame.
    """
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is None:
        return memoryview(mmap.mmap(-1, count))
    return memoryview(pyarrow.allocate_buffer(count)).cast("B")


class FrameReader:
    """A reader that turns the bytes of one stream into commands.

    The caller fills `buffer()`, reports with `received()` how many bytes it filled, and takes the commands from
    `next()`. Between these calls the reader holds at most the bytes of one read, and for one large frame four times the
    bytes that have arrived; the operating system allocates those pages as they are filled.
    """

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_header_bytes: int = MAX_FRAME_BYTES,
        scratch: memoryview | None = None,
        max_json_bytes: int = MAX_JSON_ANSWER_BYTES,
    ) -> None:
        """Create a reader with these limits; `max_json_bytes` limits headers in JSON in addition."""
        self._max_frame_bytes = max_frame_bytes
        self._header_limits = max_header_bytes, max_json_bytes
        self._scratch = make_scratch() if scratch is None else scratch
        #: A frame that arrived completely in one read, as most frames do where requests are small.
        self._whole: bytes | None = None
        self._pending = bytearray()
        self._position = 0
        self._large: memoryview | None = None
        self._filled = 0
        #: The length of the large frame that has arrived in part, else 0.
        self.large_bytes = 0

    @property
    def is_mid_frame(self) -> bool:
        """Return True if bytes have arrived that `next` has not returned as a command."""
        return bool(self.large_bytes) or len(self._pending) > self._position or self._whole is not None

    @property
    def memory_bytes(self) -> int:
        """Return the memory of the large frame that has arrived in part."""
        return len(self._pending) if self._large is None else len(self._large)

    @property
    def next_memory_bytes(self) -> int:
        """Return the memory that this large frame will have after the next call of `buffer`."""
        if self._large is None:
            begun = len(self._pending) - LENGTH.size
            # A frame that is complete, and the bytes after it, stay in `_pending` until `next` is called.
            if begun < _OWN_BYTES or begun >= self.large_bytes:
                return len(self._pending)
        elif self._filled < len(self._large):
            return len(self._large)
        else:
            begun = self._filled
        return min(self.large_bytes, max(SCRATCH_BYTES, _GROWTH * begun))

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes.

        It is valid until `received`, and only if no other reader of the loop runs in between.
        """
        if not self.large_bytes:
            return self._scratch
        large = self._large
        if large is None:
            if self.next_memory_bytes == len(self._pending):
                return self._scratch
            self._begin_own(memoryview(self._pending)[LENGTH.size :])
        elif self._filled == len(large):
            self._begin_own(large)
        assert self._large is not None
        return self._large[self._filled :]

    def received(self, count: int) -> None:
        """Record that the first `count` bytes of `buffer()` have arrived."""
        if self._large is not None:
            self._filled += count
        elif not self._pending and self._whole is None and self._is_whole(count):
            self._whole = bytes(self._scratch[LENGTH.size : count])
        elif count >= _LARGE_BYTES and 0 < len(self._pending) + count <= self.large_bytes + LENGTH.size:
            self._begin_own(memoryview(self._pending)[LENGTH.size :], self._scratch[:count])
        else:
            self._pending += self._scratch[:count]

    def _begin_own(self, *begun: memoryview) -> None:
        """Allocate an own buffer for the large frame and copy its bytes into it."""
        arrived = sum(map(len, begun))
        large = _memory(min(self.large_bytes, max(SCRATCH_BYTES, _GROWTH * arrived)))
        self._filled = 0
        for piece in begun:
            large[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
        self._large, self._pending = large, bytearray()

    def next(self) -> Command | None:
        """Return the next command that has arrived completely, or None.

        Raises:
            ProtocolError: a frame is too long or unreadable; the reader cannot be used any more.
        """
        if self._whole is not None:
            whole, self._whole = self._whole, None
            return decode(whole, *self._header_limits)
        if self._large is not None:
            if self._filled < self.large_bytes:
                return None
            large, self._large, self.large_bytes = self._large, None, 0
            return decode(large, *self._header_limits)
        start = self._position + LENGTH.size
        if len(self._pending) >= start:
            (length,) = LENGTH.unpack_from(self._pending, self._position)
            if not 0 < length <= self._max_frame_bytes:
                raise ProtocolError(f"a frame of {length} bytes is outside 1..{self._max_frame_bytes}")
            if len(self._pending) >= start + length:
                self._position, self.large_bytes = start + length, 0
                with memoryview(self._pending) as view, view[start : start + length] as frame:
                    command = decode(frame, *self._header_limits)
                    body, command.body = command.body, bytes(command.body)
                    assert isinstance(body, memoryview)
                    body.release()
                return command
            if length > _LARGE_BYTES:
                self.large_bytes = length
        if self._position:
            del self._pending[: self._position]
            self._position = 0
        return None

    def _is_whole(self, count: int) -> bool:
        """Return True if the first `count` bytes of the scratch buffer are exactly one frame."""
        if count <= LENGTH.size:
            return False
        (length,) = LENGTH.unpack_from(self._scratch)
        return bool(length == count - LENGTH.size <= self._max_frame_bytes)

    def feed(self, data: Buffer) -> Iterator[Command]:
        """Add `data` to the stream and yield the commands that it completes.

        Raises:
            ProtocolError: as `next`.
        """
        rest = memoryview(data)
        while rest:
            buffer = self.buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            self.received(count)
            rest = rest[count:]
            while (command := self.next()) is not None:
                yield command
