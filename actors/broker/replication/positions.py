"""How far a broker is in the one stream that a master makes: of the log, and of all other state.

The stream has one order, but a position in it is two numbers, because the log's bytes and the numbered state frames lie
in files of their own. Of two positions of one epoch neither can be ahead in one number and behind in the other, unless
a loss of power has cut the files at different places; so positions are compared number by number where it matters.
"""

from __future__ import annotations

from typing import NamedTuple


class StreamPosition(NamedTuple):
    """The log before `offset` (bytes) and the state frames up to number `sequence`.

    As tuples they are ordered by the offset first: that is for choosing the longest, never for what is confirmed.
    """

    offset: int
    sequence: int

    def covers(self, other: StreamPosition) -> bool:
        """Whether all that `other` has is here, too."""
        return self[0] >= other[0] and self[1] >= other[1]

    def meet(self, other: StreamPosition) -> StreamPosition:
        """What both have."""
        if other.covers(self):
            return self
        return StreamPosition(min(self.offset, other.offset), min(self.sequence, other.sequence))

    def join(self, other: StreamPosition) -> StreamPosition:
        """What at least one of them has."""
        if self.covers(other):
            return self
        return StreamPosition(max(self.offset, other.offset), max(self.sequence, other.sequence))


BEGIN = StreamPosition(0, 0)
