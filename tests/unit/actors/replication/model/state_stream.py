"""Number the changes of all state beside the log, as frames of the stream.

The state is progress, in-flight messages, topics, groups, staged writes and so on. Every change is a frame with the
next number and the log's end at that moment. The numbers continue over restarts and foldings. Frames are folded into
tables. A folded frame cannot be cut off again, so only confirmed frames are folded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent


class StateStream:
    """The frames of one broker that are not folded yet, for one thread.

    The caller keeps them in a journal.

    Attributes:
        folded: the tables have everything up to this number.
    """

    def __init__(self, folded: int = 0, frames: Iterable[JournalEvent] = ()) -> None:
        """Create a stream of `frames`. Raise ProtocolError if they are not consecutive."""
        self.folded = folded
        self._frames: list[JournalEvent] = []
        for frame in frames:
            self.take(frame)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def last(self) -> int:
        """Return the number of the newest frame."""
        return self.folded + len(self._frames)

    def make(self, payload: bytes, log_offset: int) -> JournalEvent:
        """Append and return a new frame of a master."""
        frame = JournalEvent(self.last + 1, log_offset, payload)
        self.take(frame)
        return frame

    def take(self, frame: JournalEvent) -> None:
        """Append the next frame of the stream.

        Raises:
            ProtocolError: it is not the next one, or its log offset is before that of the previous frame.
        """
        if frame.sequence != self.last + 1 or not frame.payload or frame.log_offset < 0:
            raise ProtocolError(f"received state frame {frame.sequence}, expected {self.last + 1}")
        if self._frames and frame.log_offset < self._frames[-1].log_offset:
            raise ProtocolError(f"state frame {frame.sequence} goes back in the log, to {frame.log_offset}")
        self._frames.append(frame)

    def after(self, sequence: int) -> Sequence[JournalEvent]:
        """Return the frames after a number. Raise InvalidInput if some of them are folded."""
        if sequence < self.folded:
            raise InvalidInput("sequence", f"at least {self.folded}, earlier frames are folded", sequence)
        return self._frames[sequence - self.folded :]

    def cut(self, sequence: int) -> None:
        """Remove the frames after a number. Raise InvalidInput if some are folded."""
        if sequence < self.folded:
            raise InvalidInput("sequence", f"at least {self.folded}, earlier frames are folded", sequence)
        del self._frames[sequence - self.folded :]

    def clamp(self, log_end: int) -> int:
        """Drop frames whose log offset is beyond `log_end`; return how many.

        Call it after a loss of power.
        """
        keep = bisect_right(self._frames, log_end, key=lambda frame: frame.log_offset)
        dropped = len(self._frames) - keep
        del self._frames[keep:]
        return dropped

    def fold(self, sequence: int, confirmed: StreamPosition) -> Sequence[JournalEvent]:
        """Remove and return the frames up to a number.

        The caller must have put them into the tables, durably, before the next call.

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
