"""A master's end and a replica's end of one connection, frame by frame, over real bytes."""

from __future__ import annotations

import random

import pytest

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import Hello, read_hello
from raymq.actors.broker.replication.reconciliation import ContinueFrom, InstallSnapshot, StreamExtent, TruncateTo
from raymq.actors.broker.replication.replication_frames import FrameKind, ReplicationFrame, ReplicationReader
from raymq.actors.broker.replication.replication_receiver import (
    BeginEpoch,
    BeginSnapshot,
    EndSnapshot,
    LoadSnapshotPart,
    ReplicationReceiver,
    Step,
    TruncateStream,
    WriteLog,
    WriteStates,
)
from raymq.actors.broker.replication.replication_sender import ReplicationSender, ShipLog
from raymq.actors.broker.replication.state_stream import StateStream
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError


class Side:
    """What a broker has, in memory."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.log_begin = 0
        self.states = StateStream()
        self.tables: list[bytes] = []
        self.epochs = EpochMap()

    @property
    def end(self) -> StreamPosition:
        return StreamPosition(self.log_begin + len(self.log), self.states.last)

    @property
    def extent(self) -> StreamExtent:
        return StreamExtent(self.epochs, StreamPosition(self.log_begin, self.states.folded), self.end)

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.append(EpochStart(epoch, self.end))

    def append(self, content: bytes) -> None:
        self.log += content

    def change(self, payload: bytes) -> None:
        self.states.make(payload, self.end.offset)

    def fold(self, sequence: int) -> None:
        self.tables += [frame.payload for frame in self.states.fold(sequence, self.end)]

    def content(self) -> tuple[bytes, list[bytes]]:
        return bytes(self.log), self.tables + [frame.payload for frame in self.states.after(self.states.folded)]

    def do(self, step: Step) -> None:
        if isinstance(step, WriteLog):
            assert step.offset == self.end.offset
            self.log += step.content
        elif isinstance(step, WriteStates):
            for frame in step.frames:
                self.states.take(frame)
        elif isinstance(step, BeginEpoch):
            self.epochs.append(step.entry)
        elif isinstance(step, TruncateStream):
            del self.log[step.position.offset - self.log_begin :]
            self.states.cut(step.position.sequence)
            self.epochs.cut(step.epoch)
        elif isinstance(step, BeginSnapshot):
            if step.keeps_log:
                del self.log[step.position.offset - self.log_begin :]
            else:
                self.log, self.log_begin = bytearray(), step.position.offset
            self.states, self.epochs, self.tables = StateStream(step.position.sequence), step.epochs, []
        elif isinstance(step, LoadSnapshotPart):
            self.tables = bytes(step.content).split(b"|")
        else:
            assert isinstance(step, EndSnapshot)


class Connection:
    """One connection, over encoded frames."""

    def __init__(self, master: Side, replica: Side, epoch: int) -> None:
        self.master, self.replica = master, replica
        self.confirmed = BEGIN
        self.feeder = ReplicationSender(epoch, lambda: master.extent, master.states.after, lambda: self.confirmed)
        self.follower = ReplicationReceiver(epoch, replica.extent, BEGIN)
        self.verdicts: list[object] = []
        self.fenced = 0

    def greet(self) -> None:
        """HELLO and the answer, again after a cut or a snapshot, until the stream may begin."""
        for _ in range(3):
            extent = self.replica.extent
            hello = Hello("c", "g", 2, "dir-2", "n2", extent.begin, extent.epochs)
            (said,) = ReplicationReader().feed(self.follower.hello(hello).encode())
            verdict, answer = self.feeder.on_hello(read_hello(said.body), said.position)
            self.verdicts.append(type(verdict))
            self.give(answer)
            if isinstance(verdict, ContinueFrom):
                return
            if isinstance(verdict, InstallSnapshot):
                tables = b"|".join(self.master.tables)
                if tables:
                    self.give(ReplicationFrame(FrameKind.TABLES, answer.epoch, body=tables))
                self.give(ReplicationFrame(FrameKind.SNAPSHOT_END, answer.epoch))

    def give(self, frame: ReplicationFrame) -> None:
        (received,) = ReplicationReader().feed(frame.encode())
        for step in self.follower.receive(received, self.fenced):
            self.replica.do(step)
        assert self.follower.end == self.replica.end

    def ship(self, most_bytes: int = 1 << 20, most_frames: int = 1000) -> int:
        """Ship until there is nothing more; how many frames that took."""
        count = 0
        while count < most_frames and (shipment := self.feeder.next_shipment(most_bytes)) is not None:
            log = b""
            if isinstance(shipment, ShipLog):
                begin = self.master.log_begin
                log = bytes(self.master.log[shipment.start - begin : shipment.end - begin])
            self.give(self.feeder.frame_of(shipment, log))
            count += 1
        return count


def master_of(epoch: int = 1) -> Side:
    made = Side()
    made.begin_epoch(epoch)
    return made


def test_log_and_state_arrive_in_the_order_in_which_they_were_made() -> None:
    master, replica = master_of(), Side()
    master.append(b"aaaa")
    master.change(b"one")
    master.change(b"two")
    master.append(b"bbbb")
    master.change(b"three")
    connection = Connection(master, replica, 1)
    connection.greet()
    seen = []
    while (shipment := connection.feeder.next_shipment()) is not None:
        log = bytes(master.log[shipment.start : shipment.end]) if isinstance(shipment, ShipLog) else b""
        frame = connection.feeder.frame_of(shipment, log)
        seen.append(frame.kind)
        connection.give(frame)
    kinds = FrameKind
    assert seen == [kinds.EPOCH, kinds.LOG, kinds.STATE, kinds.LOG, kinds.STATE]
    assert replica.content() == master.content()
    assert connection.follower.acknowledgement(replica.end).position == master.end


def test_nothing_goes_across_the_end_of_an_epoch() -> None:
    master, replica = master_of(), Side()
    master.append(b"aaaa")
    master.begin_epoch(2)
    master.begin_epoch(4)
    master.append(b"bbbb")
    connection = Connection(master, replica, 4)
    connection.greet()
    connection.ship()
    assert replica.epochs == master.epochs
    assert replica.content() == master.content()


def test_trap_6_the_same_master_in_a_new_epoch_goes_on_with_a_connection_of_that_epoch() -> None:
    master, replica = master_of(), Side()
    master.append(b"aaaa")
    former = Connection(master, replica, 1)
    former.greet()
    former.ship()
    master.begin_epoch(2)
    master.append(b"bbbb")
    former.fenced = 2
    with pytest.raises(ProtocolError):
        former.ship()
    again = Connection(master, replica, 2)
    again.greet()
    again.ship()
    assert again.verdicts == [ContinueFrom]
    assert replica.epochs == master.epochs
    assert replica.content() == master.content()


def test_a_former_masters_tail_is_cut_and_the_stream_goes_on() -> None:
    master, replica = master_of(), Side()
    master.append(b"aaaa")
    first = Connection(master, replica, 1)
    first.greet()
    first.ship()
    master.append(b"void")
    master.change(b"void")
    replica.begin_epoch(2)
    replica.append(b"bb")
    replica.change(b"one")
    returned = Connection(replica, master, 2)
    returned.greet()
    returned.ship()
    assert returned.verdicts == [TruncateTo, ContinueFrom]
    assert master.content() == replica.content() == (b"aaaabb", [b"one"])


def test_who_is_too_far_behind_gets_a_snapshot_and_then_the_stream() -> None:
    master, replica = master_of(), Side()
    for _ in range(5):
        master.append(b"aaaa")
        master.change(b"change")
    master.fold(3)
    del master.log[:8]
    master.log_begin = 8
    connection = Connection(master, replica, 1)
    connection.greet()
    connection.ship()
    assert connection.verdicts == [InstallSnapshot, ContinueFrom]
    assert replica.content() == master.content()
    assert (replica.log_begin, replica.states.folded) == (8, 3)


def test_a_follower_is_told_what_is_confirmed_and_never_more_than_it_has() -> None:
    master, replica = master_of(), Side()
    master.append(b"aaaabbbb")
    connection = Connection(master, replica, 1)
    connection.confirmed = StreamPosition(8, 0)
    connection.greet()
    connection.ship(4, most_frames=2)
    assert connection.follower.confirmed == StreamPosition(4, 0)
    connection.ship()
    connection.give(connection.feeder.heartbeat())
    assert connection.follower.confirmed == StreamPosition(8, 0)


def frames_that_do_not_fit(replica: Side) -> list[ReplicationFrame]:
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
def test_a_frame_that_does_not_fit_ends_the_connection(which: int) -> None:
    master, replica = master_of(), Side()
    master.append(b"aaaa")
    connection = Connection(master, replica, 1)
    connection.greet()
    connection.ship()
    with pytest.raises(ProtocolError):
        connection.give(frames_that_do_not_fit(replica)[which])
    assert replica.content() == master.content()


def test_before_the_verdict_nothing_is_taken() -> None:
    connection = Connection(master_of(), Side(), 1)
    assert connection.feeder.next_shipment() is None
    with pytest.raises(ProtocolError):
        connection.give(ReplicationFrame(FrameKind.LOG, 1, BEGIN, body=b"early"))


@pytest.mark.parametrize("seed", range(60))
def test_whatever_two_brokers_have_after_elections_they_end_with_the_same(seed: int) -> None:
    """Masters change between two brokers at random, with tails that only one of them has; one has always all."""
    chance = random.Random(seed)
    sides = [Side(), Side()]
    master = 0
    for epoch in range(1, 12):
        if chance.random() < 0.6:
            master = 1 - master
        # Who is elected has all that was confirmed, here: what both had when they were last connected.
        leader, other = sides[master], sides[1 - master]
        leader.begin_epoch(epoch)
        for _ in range(chance.randrange(5)):
            leader.append(bytes([epoch]) * chance.randrange(1, 6))
            if chance.random() < 0.5:
                leader.change(bytes([epoch]))
        if chance.random() < 0.6:
            connection = Connection(leader, other, epoch)
            connection.greet()
            connection.ship(chance.randrange(1, 8), chance.randrange(12))
    sides[master].begin_epoch(20)
    last = Connection(sides[master], sides[1 - master], 20)
    last.greet()
    last.ship(3)
    assert sides[0].content() == sides[1].content()
    assert sides[0].epochs == sides[1].epochs
