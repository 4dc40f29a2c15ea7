"""Test both ends of one replication connection, frame by frame, over real bytes."""

from __future__ import annotations

import random

import pytest

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import Hello, read_hello
from raymq.actors.broker.replication.reconciliation import ContinueFrom, InstallSnapshot, StreamExtent, TruncateTo
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
from raymq.actors.errors import ProtocolError
from tests.unit.actors.replication.model.model_journal import ModelJournal
from tests.unit.actors.replication.replication_reader import ReplicationReader


class Side:
    """Hold a broker's log, state and epochs in memory."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.log_begin = 0
        self.journal = ModelJournal()
        self.tables: list[bytes] = []
        self.epochs = EpochMap()

    @property
    def end(self) -> StreamPosition:
        return StreamPosition(self.log_begin + len(self.log), self.journal.last)

    @property
    def extent(self) -> StreamExtent:
        return StreamExtent(self.epochs, StreamPosition(self.log_begin, self.journal.snapshot), self.end)

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.append(EpochStart(epoch, self.end))

    def append(self, content: bytes) -> None:
        self.log += content

    def change(self, payload: bytes) -> None:
        self.journal.append(payload, self.end.offset)

    def compact(self, sequence: int) -> None:
        self.tables += [frame.payload for frame in self.journal.compact(sequence, self.end)]

    def content(self) -> tuple[bytes, list[bytes]]:
        return bytes(self.log), self.tables + [frame.payload for frame in self.journal.after(self.journal.snapshot)]

    def do(self, step: Step) -> None:
        if isinstance(step, WriteLog):
            assert step.offset == self.end.offset
            self.log += step.content
        elif isinstance(step, WriteEvents):
            for frame in step.events:
                self.journal.take(frame)
        elif isinstance(step, BeginEpoch):
            self.epochs.append(step.entry)
        elif isinstance(step, TruncateStream):
            del self.log[step.position.offset - self.log_begin :]
            self.journal.cut(step.position.sequence)
            self.epochs.cut(step.epoch)
        elif isinstance(step, BeginSnapshot):
            if step.keeps_log:
                del self.log[step.position.offset - self.log_begin :]
            else:
                self.log, self.log_begin = bytearray(), step.position.offset
            self.journal, self.epochs, self.tables = ModelJournal(step.position.sequence), step.epochs, []
        elif isinstance(step, LoadSnapshotPart):
            self.tables = bytes(step.content).split(b"|")
        else:
            assert isinstance(step, EndSnapshot)


class Connection:
    """Connect a master and a replica over encoded frames."""

    def __init__(self, master: Side, replica: Side, epoch: int) -> None:
        self.master, self.replica = master, replica
        self.confirmed = BEGIN
        self.feeder = ReplicationSender(epoch, lambda: master.extent, master.journal.after, lambda: self.confirmed)
        self.follower = ReplicationReceiver(epoch, replica.extent, BEGIN)
        self.verdicts: list[object] = []
        self.fenced = 0

    def shake_hands(self) -> None:
        """Exchange HELLO and its answer until the stream may begin.

        HELLO is sent again after a cut or a snapshot.
        """
        for _ in range(3):
            extent = self.replica.extent
            hello = Hello("c", "g", 2, "dir-2", "n2", extent.begin, extent.epochs)
            (hello_frame,) = ReplicationReader().feed(self.follower.hello(hello).encode())
            verdict, answer = self.feeder.on_hello(read_hello(hello_frame.body), hello_frame.position)
            self.verdicts.append(type(verdict))
            self.deliver(answer)
            if isinstance(verdict, ContinueFrom):
                return
            if isinstance(verdict, InstallSnapshot):
                tables = b"|".join(self.master.tables)
                if tables:
                    self.deliver(ReplicationFrame(FrameKind.TABLES, answer.epoch, body=tables))
                self.deliver(ReplicationFrame(FrameKind.SNAPSHOT_END, answer.epoch))

    def deliver(self, frame: ReplicationFrame) -> None:
        (received,) = ReplicationReader().feed(frame.encode())
        for step in self.follower.receive(received, self.fenced):
            self.replica.do(step)
        assert self.follower.end == self.replica.end

    def next_frame(self, most_bytes: int = 1 << 20) -> ReplicationFrame | None:
        log, begin_of_log = self.master.log, self.master.log_begin
        return self.feeder.next_frame(
            self.master.extent.end,
            lambda begin, end: bytes(log[begin - begin_of_log : end - begin_of_log]),
            most_bytes,
        )

    def ship(self, most_bytes: int = 1 << 20, most_frames: int = 1000) -> int:
        """Ship everything pending; return the number of frames."""
        count = 0
        while count < most_frames and (frame := self.next_frame(most_bytes)) is not None:
            self.deliver(frame)
            count += 1
        return count


def start_master(epoch: int = 1) -> Side:
    made = Side()
    made.begin_epoch(epoch)
    return made


def test_log_and_state_arrive_in_original_order() -> None:
    master, replica = start_master(), Side()
    master.append(b"aaaa")
    master.change(b"one")
    master.change(b"two")
    master.append(b"bbbb")
    master.change(b"three")
    connection = Connection(master, replica, 1)
    connection.shake_hands()
    seen = []
    while (frame := connection.next_frame()) is not None:
        seen.append(frame.kind)
        connection.deliver(frame)
    kinds = FrameKind
    assert seen == [kinds.EPOCH, kinds.LOG, kinds.STATE, kinds.LOG, kinds.STATE]
    assert replica.content() == master.content()
    assert connection.follower.acknowledgement(replica.end).position == master.end


def test_shipments_do_not_cross_epoch_ends() -> None:
    master, replica = start_master(), Side()
    master.append(b"aaaa")
    master.begin_epoch(2)
    master.begin_epoch(4)
    master.append(b"bbbb")
    connection = Connection(master, replica, 4)
    connection.shake_hands()
    connection.ship()
    assert replica.epochs == master.epochs
    assert replica.content() == master.content()


def test_new_epoch_requires_new_connection() -> None:
    master, replica = start_master(), Side()
    master.append(b"aaaa")
    former = Connection(master, replica, 1)
    former.shake_hands()
    former.ship()
    master.begin_epoch(2)
    master.append(b"bbbb")
    former.fenced = 2
    with pytest.raises(ProtocolError):
        former.ship()
    again = Connection(master, replica, 2)
    again.shake_hands()
    again.ship()
    assert again.verdicts == [ContinueFrom]
    assert replica.epochs == master.epochs
    assert replica.content() == master.content()


def test_former_master_tail_is_truncated_before_streaming() -> None:
    master, replica = start_master(), Side()
    master.append(b"aaaa")
    first = Connection(master, replica, 1)
    first.shake_hands()
    first.ship()
    master.append(b"void")
    master.change(b"void")
    replica.begin_epoch(2)
    replica.append(b"bb")
    replica.change(b"one")
    returned = Connection(replica, master, 2)
    returned.shake_hands()
    returned.ship()
    assert returned.verdicts == [TruncateTo, ContinueFrom]
    assert master.content() == replica.content() == (b"aaaabb", [b"one"])


def test_far_behind_replica_gets_snapshot_then_stream() -> None:
    master, replica = start_master(), Side()
    for _ in range(5):
        master.append(b"aaaa")
        master.change(b"change")
    master.compact(3)
    del master.log[:8]
    master.log_begin = 8
    connection = Connection(master, replica, 1)
    connection.shake_hands()
    connection.ship()
    assert connection.verdicts == [InstallSnapshot, ContinueFrom]
    assert replica.content() == master.content()
    assert (replica.log_begin, replica.journal.snapshot) == (8, 3)


def test_confirmed_position_never_exceeds_replica_log() -> None:
    master, replica = start_master(), Side()
    master.append(b"aaaabbbb")
    connection = Connection(master, replica, 1)
    connection.confirmed = StreamPosition(8, 0)
    connection.shake_hands()
    connection.ship(4, most_frames=2)
    assert connection.follower.confirmed == StreamPosition(4, 0)
    connection.ship()
    connection.deliver(connection.feeder.heartbeat())
    assert connection.follower.confirmed == StreamPosition(8, 0)


def mismatched_frames(replica: Side) -> list[ReplicationFrame]:
    end = replica.end
    return [
        ReplicationFrame(FrameKind.LOG, 1, end._replace(offset=end.offset + 1), body=b"gap"),
        ReplicationFrame(FrameKind.LOG, 1, end._replace(offset=end.offset - 1), body=b"again"),
        ReplicationFrame(FrameKind.LOG, 1, end),
        ReplicationFrame(FrameKind.LOG, 2, end, body=b"of another epoch"),
        ReplicationFrame(FrameKind.CUT, 1, end, body=bytes(4)),
        ReplicationFrame(FrameKind.HELLO, 1, end),
        ReplicationFrame(FrameKind.REFUSED, 1, body=b"go away"),
        ReplicationFrame(FrameKind.STATE, 1, end._replace(sequence=9), body=bytes(3) + b"\1" + bytes(8) + b"x"),
        ReplicationFrame(FrameKind.EPOCH, 1, end, body=bytes(20)),
    ]


@pytest.mark.parametrize("which", range(9))
def test_mismatched_frame_raises_protocol_error(which: int) -> None:
    master, replica = start_master(), Side()
    master.append(b"aaaa")
    connection = Connection(master, replica, 1)
    connection.shake_hands()
    connection.ship()
    with pytest.raises(ProtocolError):
        connection.deliver(mismatched_frames(replica)[which])
    assert replica.content() == master.content()


def test_frames_before_handshake_are_refused() -> None:
    connection = Connection(start_master(), Side(), 1)
    assert connection.next_frame() is None
    with pytest.raises(ProtocolError):
        connection.deliver(ReplicationFrame(FrameKind.LOG, 1, BEGIN, body=b"early"))


@pytest.mark.parametrize("seed", range(60))
def test_brokers_converge_after_random_elections(seed: int) -> None:
    """Change masters at random between two brokers with tails that only one has.

    One broker always has everything.
    """
    chance = random.Random(seed)
    sides = [Side(), Side()]
    master = 0
    for epoch in range(1, 12):
        if chance.random() < 0.6:
            master = 1 - master
        # The elected broker has everything confirmed: here, what both had at their last connection.
        leader, other = sides[master], sides[1 - master]
        leader.begin_epoch(epoch)
        for _ in range(chance.randrange(5)):
            leader.append(bytes([epoch]) * chance.randrange(1, 6))
            if chance.random() < 0.5:
                leader.change(bytes([epoch]))
        if chance.random() < 0.6:
            connection = Connection(leader, other, epoch)
            connection.shake_hands()
            connection.ship(chance.randrange(1, 8), chance.randrange(12))
    sides[master].begin_epoch(20)
    last = Connection(sides[master], sides[1 - master], 20)
    last.shake_hands()
    last.ship(3)
    assert sides[0].content() == sides[1].content()
    assert sides[0].epochs == sides[1].epochs
