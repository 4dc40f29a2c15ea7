"""The numbered frames of all state beside the log: progress, in-flight, topics, groups, staged writes and so on.

Every change of such state is a frame with the next number and the log's end at that moment. The numbers go on over
restarts and foldings. Frames are folded into tables, which cannot be cut any more: so only what is confirmed is folded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.state.changes import StateChange


class StateStream:
    """The frames of one broker that are not folded yet. One thread; the shell keeps them in a journal.

    Attributes:
        folded: the tables have everything up to this number.
    """

    def __init__(self, folded: int = 0, frames: Iterable[StateChange] = ()) -> None:
        """ProtocolError: the frames do not follow."""
        self.folded = folded
        self._frames: list[StateChange] = []
        for frame in frames:
            self.take(frame)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def last(self) -> int:
        """The number of the newest frame."""
        return self.folded + len(self._frames)

    def make(self, payload: bytes, log_offset: int) -> StateChange:
        """A master's new frame."""
        frame = StateChange(self.last + 1, log_offset, payload)
        self.take(frame)
        return frame

    def take(self, frame: StateChange) -> None:
        """A frame of the stream, the next one.

        Raises:
            ProtocolError: it is not the next one, or speaks of an earlier log than the one before.
        """
        if frame.sequence != self.last + 1 or not frame.payload or frame.log_offset < 0:
            raise ProtocolError(f"state frame {frame.sequence} came where {self.last + 1} was to come")
        if self._frames and frame.log_offset < self._frames[-1].log_offset:
            raise ProtocolError(f"state frame {frame.sequence} goes back in the log, to {frame.log_offset}")
        self._frames.append(frame)

    def after(self, sequence: int) -> Sequence[StateChange]:
        """The frames behind a number; InvalidInput: some of them are folded."""
        if sequence < self.folded:
            raise InvalidInput("sequence", f"from {self.folded} on, before that all is folded", sequence)
        return self._frames[sequence - self.folded :]

    def cut(self, sequence: int) -> None:
        """What is behind this number never was; InvalidInput: it is folded."""
        if sequence < self.folded:
            raise InvalidInput("sequence", f"from {self.folded} on, before that all is folded", sequence)
        del self._frames[sequence - self.folded :]

    def clamp(self, log_end: int) -> int:
        """Drop frames that speak of more log than there is, after a loss of power; how many were dropped."""
        keep = bisect_right(self._frames, log_end, key=lambda frame: frame.log_offset)
        dropped = len(self._frames) - keep
        del self._frames[keep:]
        return dropped

    def fold(self, sequence: int, confirmed: StreamPosition) -> Sequence[StateChange]:
        """The frames up to a number, which the caller has put into the tables, durably, when he asks for no more.

        Raises:
            InvalidInput: not all of them are confirmed, and a folded frame cannot be cut off again.
        """
        most = max(min(confirmed.sequence, self.last), self.folded)
        if sequence > most:
            raise InvalidInput("sequence", f"at most {most}, which is confirmed", sequence)
        count = max(sequence - self.folded, 0)
        folded = self._frames[:count]
        del self._frames[:count]
        self.folded += count
        return folded
