"""Define positions in the stream that a master makes of its log and other state.

The stream has one order, but a position in it is two numbers, because the log's bytes and the numbered state changes
are stored in separate files. Of two positions of one epoch neither can be ahead in one number and behind in the other,
unless a loss of power has cut the files at different places. So positions are compared number by number where it
matters.
"""

from __future__ import annotations

from typing import NamedTuple


class StreamPosition(NamedTuple):
    """The log before `offset` (bytes) and the state changes up to number `sequence`.

    As tuples positions are ordered by the offset first: use that order to choose the longest stream, never for what is
    confirmed.
    """

    offset: int
    sequence: int

    def covers(self, other: StreamPosition) -> bool:
        """Return True if this position includes all of `other`."""
        return self[0] >= other[0] and self[1] >= other[1]

    def meet(self, other: StreamPosition) -> StreamPosition:
        """Return the part that both positions include."""
        if other.covers(self):
            return self
        return StreamPosition(min(self.offset, other.offset), min(self.sequence, other.sequence))

    def join(self, other: StreamPosition) -> StreamPosition:
        """Return the part that at least one of the positions includes."""
        if self.covers(other):
            return self
        if other.covers(self):
            return other
        return StreamPosition(max(self.offset, other.offset), max(self.sequence, other.sequence))


BEGIN = StreamPosition(0, 0)
