"""Connect a replica to its master without a network, with the replication steps of real brokers.

`ReplicationSender`, `ReplicationReceiver` and `ReplicaStream` exchange their frames by direct calls.
"""

from __future__ import annotations

import itertools
import random
from typing import Final, Protocol

from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_file import EpochFileCache
from raymq.actors.broker.replication.frame_bodies import Hello, read_hello
from raymq.actors.broker.replication.reconciliation import ContinueFrom, InstallSnapshot, StreamExtent
from raymq.actors.broker.replication.replication_frames import FrameKind, ReplicationFrame
from raymq.actors.broker.replication.replication_receiver import (
    BeginEpoch,
    BeginSnapshot,
    EndSnapshot,
    LoadSnapshotPart,
    ReplicationReceiver,
    Step,
    TruncateStream,
    WriteEvents,
    WriteLog,
)
from raymq.actors.broker.replication.replication_sender import ReplicationSender
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.storage import expired_queue_offsets
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.store import Store

#: A replica continues after at most so many HELLOs: a truncation and a copy of the journal come before.
_MAX_HELLOS: Final = 8


class Master(Protocol):
    """Describe a master that ships its log and its journal's events.

    Attributes:
        verdicts: the kinds of verdicts that returning replicas got.
    """

    epoch: int
    epochs: EpochFileCache
    store: Store
    verdicts: list[type]

    def send(self) -> None:
        """Change something while a copy is shipped."""


class ReplicationLink:
    """One connection between a master and a replica, with both ends."""

    def __init__(self, master: Master, stream: ReplicaStream) -> None:
        self._master, self._stream = master, stream
        self._tables_at: int | None = None
        assert master.store.journal.backlog is not None
        self._backlog: ReplicationBacklog = master.store.journal.backlog
        self._feeder = ReplicationSender(master.epoch, self._extent, self._backlog.after, lambda: BEGIN)
        self._follower = ReplicationReceiver(master.epoch, stream.extent, stream.confirmed)

    def connect(self) -> None:
        """Exchange HELLOs until the replica may continue."""
        stream, follower, feeder = self._stream, self._follower, self._feeder
        stream.begin_connection()
        for _ in range(_MAX_HELLOS):
            follower.end, self._tables_at = stream.end, None
            greeting = Hello("c", "g", 2, "identity", "nonce", stream.extent.begin, stream.epochs)
            hello = follower.hello(greeting)
            verdict, answer = feeder.on_hello(read_hello(hello.body), hello.position)
            self._master.verdicts.append(type(verdict))
            if isinstance(verdict, InstallSnapshot):
                self._take_copy(hello)
                continue
            self._do(answer)
            if isinstance(verdict, ContinueFrom):
                return
        raise AssertionError(f"it is never told to go on: {self._master.verdicts[-_MAX_HELLOS:]}")

    def _take_copy(self, hello: ReplicationFrame) -> None:
        copy = self._master.store.journal.copy()
        try:
            self._tables_at = copy.sequence
            greeting = read_hello(hello.body)
            verdict, answer = self._feeder.on_hello(greeting, hello.position)
            assert isinstance(verdict, InstallSnapshot)
            self._do(answer)
            ends = run_steps(self._master.store.expired_ends(greeting.begin.offset if verdict.keeps_log else 0))
            for part in itertools.chain(copy.parts(), expired_queue_offsets.parts(ends)):
                self._master.send()  # changes continue meanwhile
                self._do(ReplicationFrame(FrameKind.TABLES, self._master.epoch, BEGIN, BEGIN, part.encode()))
            self._do(ReplicationFrame(FrameKind.SNAPSHOT_END, self._master.epoch))
        finally:
            copy.close()

    @property
    def store(self) -> Store:
        """Return the replica's store."""
        return self._stream.store

    def step(self, most_bytes: int = 1 << 20) -> bool:
        """Ship one piece; return False if the replica has everything."""
        store = self._master.store
        frame = self._feeder.next_frame(
            self._extent().end, lambda begin, end: bytes(store.log_slice(begin, end).view), most_bytes
        )
        if frame is not None:
            self._do(frame)
        return frame is not None

    def all(self) -> None:
        """Ship until the replica has everything."""
        while self.step():
            pass

    def some(self, random_: random.Random) -> None:
        """Ship a random part of what is left; the replica indexes some of its timers."""
        for _ in range(random_.choice((0, 1, 5, 40))):
            self.step(random_.choice((200, 5_000, 20_000)))
            if random_.random() < 0.2:
                self._stream.timers.follow()

    def _extent(self) -> StreamExtent:
        master, begin = self._master, self._tables_at
        dropped = self._backlog.dropped if begin is None else begin
        end = StreamPosition(master.store.max_physical_offset, master.store.journal.last)
        return StreamExtent(master.epochs.map, StreamPosition(master.store.min_physical_offset, dropped), end)

    def _do(self, frame: ReplicationFrame) -> None:
        for step in self._follower.receive(frame, 0):
            self._do_one(step)

    def _do_one(self, step: Step) -> None:
        stream = self._stream
        if isinstance(step, WriteLog):
            stream.write_log(step.offset, step.content, lambda: None)
        elif isinstance(step, WriteEvents):
            stream.write_events(step.events)
        elif isinstance(step, BeginEpoch):
            stream.begin_epoch(step.entry)
        elif isinstance(step, TruncateStream):
            stream.cut(step.position, step.epoch)
        elif isinstance(step, BeginSnapshot):
            self._epochs, self._sequence = step.epochs, step.position.sequence
            stream.begin_snapshot(step.position, keeps_log=step.keeps_log)
        elif isinstance(step, LoadSnapshotPart):
            stream.load(step.content)
        elif isinstance(step, EndSnapshot):
            stream.end_snapshot(self._sequence, self._epochs)
