"""Run a broker as replica, which follows the master."""

from __future__ import annotations

from raymq.actors.broker.replication.frame_bodies import Hello
from raymq.actors.broker.replication.replication_frames import HEAD_BYTES, FrameKind, ReplicationFrame
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
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.group_state import ReplicaRecord
from raymq.storage.errors import StoreError
from tests.unit.actors.replication.model.broker_parts import GROUP, BrokerParts
from tests.unit.actors.replication.model.model_journal import ModelJournal
from tests.unit.actors.replication.model.network import Line
from tests.unit.actors.replication.replication_reader import ReplicationReader


class ReplicaPart(BrokerParts):
    """Do what a broker does while another one is master."""

    def follow(self, master: ReplicaRecord, epoch: int) -> None:
        follower = ReplicationReceiver(epoch, self.extent, self.confirmed)
        reader = ReplicationReader()

        def receive(content: bytes) -> None:
            if self.line is not line:
                return
            try:
                for frame in self._read(reader, content):
                    self._apply_frame(line, follower, frame)
            except (ProtocolError, StoreError):
                self.disconnect()

        self.follower, self.received_at = follower, self.process.clock()
        self.line = line = self.world.network.connect(self.process, master.address, receive)
        line.send(self._hello(follower), by_source=True)

    def _read(self, reader: ReplicationReader, content: bytes) -> list[ReplicationFrame]:
        if "skip the CRC" in self.bugs and len(content) > HEAD_BYTES and content[3] == FrameKind.LOG:
            from raymq.actors.broker.replication import replication_frames

            try:
                head = replication_frames.read_head(content)
            except ProtocolError:
                return list(reader.feed(content))
            body = content[HEAD_BYTES:]
            return [ReplicationFrame(head.kind, head.epoch, head.position, head.confirmed, body)]
        return list(reader.feed(content))

    def _hello(self, follower: ReplicationReceiver) -> bytes:
        extent = self.extent
        hello = Hello("c", GROUP, self.number, self.disk.identity, self.nonce, extent.begin, extent.epochs)
        return follower.hello(hello).encode()

    def _apply_frame(self, line: Line, follower: ReplicationReceiver, frame: ReplicationFrame) -> None:
        self.received_at = self.process.clock()
        fenced = 0 if "elect without sealing" in self.bugs else self.disk.fenced
        steps = follower.receive(frame, fenced)
        self.confirmed = follower.confirmed
        if "acknowledge what was received" in self.bugs and any(isinstance(step, WriteLog) for step in steps):
            line.send(follower.acknowledgement(follower.end).encode(), by_source=True)
            self.process.spawn(self._later(line, steps))
            return
        for step in steps:
            self._do(line, follower, step)
        if frame.kind in {FrameKind.LOG, FrameKind.STATE, FrameKind.HEARTBEAT, FrameKind.EPOCH, FrameKind.GO_ON}:
            if self.world.flush_sync and "acknowledge before the fsync" not in self.bugs:
                self.disk.sync()
            line.send(follower.acknowledgement(self.end).encode(), by_source=True)
            self.compact(self.confirmed)

    async def _later(self, line: Line, steps: list[Step]) -> None:
        await self.process.pause(0.05)
        if self.line is line and self.follower is not None:
            try:
                for step in steps:
                    self._do(line, self.follower, step)
            except AssertionError:
                self.disconnect()

    def _do(self, line: Line, follower: ReplicationReceiver, step: Step) -> None:
        disk = self.disk
        if isinstance(step, WriteLog):
            assert step.offset == len(disk.log), "a gap"
            disk.log += step.content
        elif isinstance(step, WriteEvents):
            for frame in step.events:
                self.journal.take(frame)
            disk.events += step.events
        elif isinstance(step, BeginEpoch):
            disk.epochs.append(step.entry)
        elif isinstance(step, TruncateStream):
            self.cut(step.position, step.epoch)
        elif isinstance(step, BeginSnapshot):
            del disk.log[step.position.offset if step.keeps_log else 0 :]
            disk.events, disk.epochs, disk.tables = [], step.epochs, (0, 0)
            disk.synced_log, disk.synced_events = min(disk.synced_log, len(disk.log)), 0
            self.journal = ModelJournal()
            self.tables = (step.position.sequence, 0)
        elif isinstance(step, LoadSnapshotPart):
            self.tables = (self.tables[0], int.from_bytes(step.content, "big"))
        elif isinstance(step, EndSnapshot):
            disk.tables = self.tables
            self.journal = ModelJournal(self.tables[0])
        self.end = StreamPosition(len(disk.log), self.journal.last)
        if isinstance(step, TruncateStream | EndSnapshot):
            line.send(self._hello(follower), by_source=True)
