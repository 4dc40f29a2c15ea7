"""Map the stream to epochs; a returning broker finds its invalid part with it.

An epoch begins where its master's log ended when it was elected. Two elections without a write between them begin at
the same place: both epochs are kept, and the earlier one is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.errors import InvalidInput
from raymq.storage.tables.leader_epoch_checkpoint import MAX_EPOCHS


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The position at which an epoch begins."""

    epoch: int
    start: StreamPosition


class EpochMap:
    """The epochs of one broker's stream, oldest first.

    It is used by one thread. After a change save it before anything else.
    """

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        """Create a map. Raise InvalidInput if the entries do not rise."""
        self._entries: list[EpochStart] = []
        for entry in entries:
            self.append(entry)

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochMap) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # the class is mutable

    @property
    def last(self) -> EpochStart | None:
        """Return the newest epoch, or None."""
        return self._entries[-1] if self._entries else None

    @property
    def last_epoch(self) -> int:
        """Return the newest epoch's number, 0 without epochs."""
        return self._entries[-1].epoch if self._entries else 0

    def append(self, entry: EpochStart) -> None:
        """Begin a new epoch.

        Raise InvalidInput if it is not newer, or begins before the last one begins.
        """
        last = self.last
        if entry.epoch < 1 or min(entry.start) < 0:
            raise InvalidInput("epoch", "at least 1, with a start of at least 0", entry)
        if last is not None and (entry.epoch <= last.epoch or not entry.start.covers(last.start)):
            raise InvalidInput("epoch", f"newer than {last}, and not before it", entry)
        self._entries.append(entry)
        del self._entries[:-MAX_EPOCHS]

    def end_of(self, epoch: int, end: StreamPosition) -> StreamPosition | None:
        """Return where an epoch ends in a stream that ends at `end`, or None.

        None: the epoch is not in the map.
        """
        for number, entry in enumerate(self._entries):
            if entry.epoch == epoch:
                return self._entries[number + 1].start if number + 1 < len(self._entries) else end
        return None

    def at(self, offset: int) -> EpochStart | None:
        """Return the epoch of the log's bytes at `offset`, present or future.

        It is the last epoch that begins at or before `offset`.
        """
        found = None
        for entry in self._entries:
            if entry.start.offset > offset:
                break
            found = entry
        return found

    def after(self, epoch: int) -> EpochStart | None:
        """Return the next newer epoch that is known, or None."""
        if not self._entries or self._entries[-1].epoch <= epoch:
            return None
        return next(entry for entry in self._entries if entry.epoch > epoch)

    def cut(self, last_epoch: int) -> None:
        """Remove epochs newer than `last_epoch`."""
        self._entries = [entry for entry in self._entries if entry.epoch <= last_epoch]

    def clamp(self, end: StreamPosition) -> None:
        """Drop epochs that begin after `end`, where the stream was found to end.

        Call it at a start or before an election. The offset of the log's bytes determines their epoch. If a loss of
        power took more of the state than of the log, epochs are taken to begin at the end of the remaining state, so
        that replicas cut their state to it.
        """
        self._entries = [
            EpochStart(entry.epoch, entry.start.meet(StreamPosition(entry.start.offset, end.sequence)))
            for entry in self._entries
            if entry.start.offset <= end.offset
        ]

    def drop_before(self, position: StreamPosition) -> None:
        """Forget the epochs that end at or before `position`, where the stream now begins.

        The first remaining epoch keeps its own start: replicas identify an epoch by number and start.
        """
        keep = 0
        for number in range(1, len(self._entries)):
            if position.covers(self._entries[number].start):
                keep = number
        self._entries = self._entries[keep:]

    def common_epoch(self, own_end: StreamPosition, other: EpochMap, other_end: StreamPosition) -> EpochStart | None:
        """Return the newest common epoch of two streams, and the end of their common part.

        Return None if they have no epoch in common. Only one master makes an epoch. So for the newest epoch that both
        streams have, by number and log offset, they are the same as far as the shorter one goes, and so is all before
        it.
        """
        others = {(entry.epoch, entry.start.offset) for entry in other}
        for entry in reversed(self._entries):
            if (entry.epoch, entry.start.offset) in others:
                own = self.end_of(entry.epoch, own_end)
                theirs = other.end_of(entry.epoch, other_end)
                assert own is not None
                assert theirs is not None
                # The epochs of a snapshot's tables may be newer than its log has reached yet.
                return EpochStart(entry.epoch, own.meet(own_end).meet(theirs.meet(other_end)))
        return None
