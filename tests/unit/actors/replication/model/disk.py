"""Simulate a broker's disk: writes survive the process, and fsynced writes survive power loss."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.errors import StoreFailed
from raymq.storage.journal.journal_event import JournalEvent
from tests.unit.actors.replication.model.model_journal import ModelJournal

#: A message consists of its number, in this many bytes.
RECORD_BYTES = 8


def record(number: int) -> bytes:
    return number.to_bytes(RECORD_BYTES, "big")


def numbers(content: bytes | bytearray) -> list[int]:
    """Return the messages in a log."""
    return [
        int.from_bytes(content[at : at + RECORD_BYTES], "big")
        for at in range(0, len(content) - RECORD_BYTES + 1, RECORD_BYTES)
    ]


@dataclass
class BrokerDisk:
    """Hold the files of one directory."""

    identity: str
    log: bytearray = field(default_factory=bytearray)
    events: list[JournalEvent] = field(default_factory=list)
    epochs: EpochMap = field(default_factory=EpochMap)
    #: The tables of the snapshot: its newest event, and the committed offset of the consumer group.
    tables: tuple[int, int] = (0, 0)
    fenced: int = 0
    #: Nonces of the starts that the register may list.
    nonces: list[str] = field(default_factory=list)
    #: The number of restarts of the machine.
    boots: int = 0
    #: Whether the tail may be lost since the replica was last in sync.
    tail_lost: bool = False
    boot: int = 0
    fails: bool = False
    synced_log: int = 0
    synced_events: int = 0

    def sync(self) -> None:
        """Simulate fsync; raise StoreFailed on a failing disk."""
        if self.fails:
            raise StoreFailed("fsync failed")
        self.synced_log, self.synced_events = len(self.log), len(self.events)

    def lose_power(self, chance: random.Random, keep: int) -> None:
        """Drop unsynced writes at random, but no log byte before `keep`."""
        length = max(chance.randint(min(self.synced_log, len(self.log)), len(self.log)), keep)
        if length < len(self.log):
            del self.log[length:]
        count = chance.randint(min(self.synced_events, len(self.events)), len(self.events))
        del self.events[count:]
        self.boot += 1

    def recover(self) -> tuple[ModelJournal, StreamExtent]:
        """Recover as a start does.

        Whole records stay, with the state that refers to them and the epochs that begin within the log.
        """
        del self.log[len(self.log) - len(self.log) % RECORD_BYTES :]
        journal = ModelJournal(self.tables[0], self.events)
        journal.clamp(len(self.log))
        self.events = list(journal.after(journal.snapshot))
        self.synced_log = min(self.synced_log, len(self.log))
        self.synced_events = min(self.synced_events, len(self.events))
        end = StreamPosition(len(self.log), journal.last)
        self.epochs.clamp(end)
        return journal, StreamExtent(self.epochs, StreamPosition(0, journal.snapshot), end)

    def progress(self) -> int:
        """Return the consumer group's committed offset, in messages."""
        return int.from_bytes(self.events[-1].payload, "big") if self.events else self.tables[1]
