"""Cutting a byte stream into commands.

Bytes arrive in a buffer that the reader offers: a scratch buffer that connections of one loop share, or, within a frame
that is longer than `_LARGE_BYTES`, that frame's own memory, so that a large body is never copied.
"""

from __future__ import annotations

from collections.abc import Iterator

from raymq.actors.errors import ProtocolError
from raymq.actors.wire.frame import LENGTH, MAX_FRAME_BYTES, Buffer, Command, decode

#: A frame above this that has not arrived whole gets memory of its own.
_LARGE_BYTES = 16 * 1024
#: What one read takes at most, large frames apart.
SCRATCH_BYTES = 256 * 1024


def make_scratch() -> memoryview:
    """A buffer for the readers of one event loop."""
    return memoryview(bytearray(SCRATCH_BYTES))


def _memory(count: int) -> memoryview:
    """Memory for a large frame: from Arrow's pool, which has the last frame's pages at hand where malloc gets new ones.

    Imported here: what never has a large frame, such as most name servers, does without Arrow.
    """
    from pyarrow import allocate_buffer

    return memoryview(allocate_buffer(count)).cast("B")


class FrameReader:
    """Offers `buffer()`, is told by `received()` how much of it was filled, and gives the commands one by one.

    Between the three it holds at most what one read brought and one frame. A large frame takes memory only at the
    `buffer()` after its length was seen, and the system gives the pages as they fill.
    """

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_header_bytes: int = MAX_FRAME_BYTES,
        scratch: memoryview | None = None,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
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

    def buffer(self) -> memoryview:
        """Where the next bytes go; valid until `received`, and only if that comes before any other reader's turn."""
        if not self.large_bytes:
            return self._scratch
        if self._large is None:
            self._large = _memory(self.large_bytes)
            begun = self._pending[LENGTH.size :]
            self._filled = len(begun)
            self._large[: self._filled] = begun
            self._pending = bytearray()
        return self._large[self._filled :]

    def received(self, count: int) -> None:
        """The first `count` bytes of `buffer()` have arrived."""
        if self._large is not None:
            self._filled += count
        elif not self._pending and self._whole is None and self._is_whole(count):
            self._whole = bytes(self._scratch[LENGTH.size : count])
        else:
            self._pending += self._scratch[:count]

    def next(self) -> Command | None:
        """The next command that has arrived whole, or None.

        Raises:
            ProtocolError: a frame is too long or unreadable; the reader cannot go on.
        """
        if self._whole is not None:
            whole, self._whole = self._whole, None
            return decode(whole, self._max_header_bytes)
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            large, self._large, self.large_bytes = self._large, None, 0
            return decode(large, self._max_header_bytes)
        start = self._position + LENGTH.size
        if len(self._pending) >= start:
            (length,) = LENGTH.unpack_from(self._pending, self._position)
            if not 0 < length <= self._max_frame_bytes:
                raise ProtocolError(f"a frame of {length} bytes is outside 1..{self._max_frame_bytes}")
            if len(self._pending) >= start + length:
                self._position = start + length
                with memoryview(self._pending) as view, view[start : start + length] as frame:
                    command = decode(frame, self._max_header_bytes)
                    command.body = bytes(command.body)
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
