"""Which part of the stream was made in which epoch: by it a broker that returns finds out what of its own is void.

An epoch begins where its master's log ended when it was elected. Two elections without a write between them begin at
the same place: both epochs are kept, the former one is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raymq.actors.broker.replication.positions import StreamPosition
from raymq.storage.errors import InvalidInput
from raymq.storage.tables.epoch_starts import MOST_EPOCHS


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Where an epoch begins."""

    epoch: int
    start: StreamPosition


class EpochMap:
    """The epochs of one broker's stream, oldest first. One thread; whoever changes it saves it before going on."""

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        """InvalidInput: they do not rise."""
        self._entries: list[EpochStart] = []
        for entry in entries:
            self.append(entry)

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochMap) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment] # it changes

    @property
    def last(self) -> EpochStart | None:
        """The newest epoch."""
        return self._entries[-1] if self._entries else None

    @property
    def last_epoch(self) -> int:
        """The newest epoch's number; 0 if there is none."""
        return self._entries[-1].epoch if self._entries else 0

    def append(self, entry: EpochStart) -> None:
        """A new epoch begins; InvalidInput: it is not newer, or begins before the last one does."""
        last = self.last
        if entry.epoch < 1 or min(entry.start) < 0:
            raise InvalidInput("epoch", "from 1 on, at a place from 0 on", entry)
        if last is not None and (entry.epoch <= last.epoch or not entry.start.covers(last.start)):
            raise InvalidInput("epoch", f"newer than {last}, and not before it", entry)
        self._entries.append(entry)
        del self._entries[:-MOST_EPOCHS]

    def end_of(self, epoch: int, end: StreamPosition) -> StreamPosition | None:
        """Where an epoch ends in a stream that ends at `end`; None: it is not known here."""
        for number, entry in enumerate(self._entries):
            if entry.epoch == epoch:
                return self._entries[number + 1].start if number + 1 < len(self._entries) else end
        return None

    def at(self, offset: int) -> EpochStart | None:
        """The epoch that the log's bytes at `offset` were made in, or will be: the last that begins there or before."""
        found = None
        for entry in self._entries:
            if entry.start.offset > offset:
                break
            found = entry
        return found

    def after(self, epoch: int) -> EpochStart | None:
        """The next newer epoch that is known."""
        if not self._entries or self._entries[-1].epoch <= epoch:
            return None
        return next(entry for entry in self._entries if entry.epoch > epoch)

    def cut(self, last_epoch: int) -> None:
        """Newer epochs than this one never were."""
        self._entries = [entry for entry in self._entries if entry.epoch <= last_epoch]

    def clamp(self, end: StreamPosition) -> None:
        """The stream is found to end at `end`, at a start or before an election: drop epochs that begin behind it.

        Which epoch the log's bytes are of their offset says. Where a loss of power took more of the state than of the
        log, epochs are taken to begin at what is left of the state, so that others cut theirs to it.
        """
        self._entries = [
            EpochStart(entry.epoch, entry.start.meet(StreamPosition(entry.start.offset, end.sequence)))
            for entry in self._entries
            if entry.start.offset <= end.offset
        ]

    def drop_before(self, position: StreamPosition) -> None:
        """The stream begins at `position` now: epochs that end there or before it are forgotten.

        The first that stays keeps its own start: by number and start together replicas know an epoch again.
        """
        keep = 0
        for number in range(1, len(self._entries)):
            if position.covers(self._entries[number].start):
                keep = number
        self._entries = self._entries[keep:]

    def agreed(self, own_end: StreamPosition, other: EpochMap, other_end: StreamPosition) -> EpochStart | None:
        """The newest epoch that both streams have, and up to where they are the same; None: they have none in common.

        Only one master makes an epoch. So what two streams have of the newest epoch that both know, by number and log
        offset, is the same as far as the shorter one goes, and so is all before.
        """
        others = {(entry.epoch, entry.start.offset) for entry in other}
        for entry in reversed(self._entries):
            if (entry.epoch, entry.start.offset) in others:
                own = self.end_of(entry.epoch, own_end)
                theirs = other.end_of(entry.epoch, other_end)
                assert own is not None
                assert theirs is not None
                # Tables that were taken as they are may know of epochs that their log has not reached yet.
                return EpochStart(entry.epoch, own.meet(own_end).meet(theirs.meet(other_end)))
        return None
