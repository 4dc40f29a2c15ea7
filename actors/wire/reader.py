"""Cutting a byte stream into commands.

Bytes arrive in a buffer that the reader offers: a scratch buffer that connections of one loop share, or, within a large
frame of which `_OWN_BYTES` have arrived, that frame's own memory. It grows fourfold as it fills, so that a connection
holds about what has arrived and not what was announced, and of a large body at most a third is copied.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator

from raymq.actors.errors import ProtocolError
from raymq.actors.wire.frame import LENGTH, MAX_FRAME_BYTES, MAX_JSON_ANSWER_BYTES, Buffer, Command, decode

#: A frame above this that has not arrived whole is a large one.
_LARGE_BYTES = 16 * 1024
#: When so much of a large frame has arrived it gets memory of its own.
_OWN_BYTES = 64 * 1024
#: A frame's own memory is at most so many times what has arrived.
_GROWTH = 4
#: What one read takes at most, large frames apart.
SCRATCH_BYTES = 256 * 1024


def make_scratch() -> memoryview:
    """A buffer for the readers of one event loop."""
    return memoryview(bytearray(SCRATCH_BYTES))


def _memory(count: int) -> memoryview:
    """Memory for a large frame, whose pages are given as they are written.

    From Arrow's pool, which has the last frame's pages at hand where the system gives new ones; but what does without
    Arrow, such as a name server, does not load it because somebody sends a large frame.
    """
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is None:
        return memoryview(mmap.mmap(-1, count))
    return memoryview(pyarrow.allocate_buffer(count)).cast("B")


class FrameReader:
    """Offers `buffer()`, is told by `received()` how much of it was filled, and gives the commands one by one.

    Between the three it holds at most what one read brought, and of one large frame four times what has arrived; the
    system gives the pages of that as they fill.
    """

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_header_bytes: int = MAX_FRAME_BYTES,
        scratch: memoryview | None = None,
        max_json_bytes: int = MAX_JSON_ANSWER_BYTES,
    ) -> None:
        """`max_json_bytes` is of a header, too: of one in JSON."""
        self._max_frame_bytes = max_frame_bytes
        self._header_limits = max_header_bytes, max_json_bytes
        self._scratch = make_scratch() if scratch is None else scratch
        #: A frame that came alone and whole, as most do where requests are small.
        self._whole: bytes | None = None
        self._pending = bytearray()
        self._position = 0
        self._large: memoryview | None = None
        self._filled = 0
        #: The length of the large frame that has begun and not ended, else 0.
        self.large_bytes = 0

    @property
    def inside_a_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self.large_bytes) or len(self._pending) > self._position or self._whole is not None

    @property
    def memory_bytes(self) -> int:
        """The memory of the large frame that has begun."""
        return len(self._pending) if self._large is None else len(self._large)

    @property
    def next_memory_bytes(self) -> int:
        """The memory that the large frame that has begun will have after the next `buffer`."""
        if self._large is None:
            begun = len(self._pending) - LENGTH.size
            # What has arrived whole, and what follows it, waits for `next`.
            if begun < _OWN_BYTES or begun >= self.large_bytes:
                return len(self._pending)
        elif self._filled < len(self._large):
            return len(self._large)
        else:
            begun = self._filled
        return min(self.large_bytes, max(SCRATCH_BYTES, _GROWTH * begun))

    def buffer(self) -> memoryview:
        """Where the next bytes go; valid until `received`, and only if that comes before any other reader's turn."""
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
        """The first `count` bytes of `buffer()` have arrived."""
        if self._large is not None:
            self._filled += count
        elif not self._pending and self._whole is None and self._is_whole(count):
            self._whole = bytes(self._scratch[LENGTH.size : count])
        elif count >= _LARGE_BYTES and 0 < len(self._pending) + count <= self.large_bytes + LENGTH.size:
            self._begin_own(memoryview(self._pending)[LENGTH.size :], self._scratch[:count])
        else:
            self._pending += self._scratch[:count]

    def _begin_own(self, *begun: memoryview) -> None:
        """Give the large frame that has begun memory of its own, with what has arrived of it."""
        arrived = sum(map(len, begun))
        large = _memory(min(self.large_bytes, max(SCRATCH_BYTES, _GROWTH * arrived)))
        self._filled = 0
        for piece in begun:
            large[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
        self._large, self._pending = large, bytearray()

    def next(self) -> Command | None:
        """The next command that has arrived whole, or None.

        Raises:
            ProtocolError: a frame is too long or unreadable; the reader cannot go on.
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
        """Whether the first `count` bytes of the scratch buffer are one frame."""
        if count <= LENGTH.size:
            return False
        (length,) = LENGTH.unpack_from(self._scratch)
        return bool(length == count - LENGTH.size <= self._max_frame_bytes)

    def feed(self, data: Buffer) -> Iterator[Command]:
        """Take `data`, wherever it comes from, and yield the commands that it completes; errors as `next`."""
        rest = memoryview(data)
        while rest:
            buffer = self.buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            self.received(count)
            rest = rest[count:]
            while (command := self.next()) is not None:
                yield command
