"""Test that replicas derive timers, and deliver each once when promoted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.delay import timer_indexer
from raymq.actors.broker.core.delay.replica_timers import ReplicaTimers
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.storage.store import Store
from raymq.storage.timers import timer_log
from raymq.storage.timers.timer_entry import MIN_KEY, EntryKind
from tests.store_replication import ship
from tests.unit.actors.timer_bench import CONFIG, HOUR, TimerBench

EVER_MS = 1 << 62


class TimerPair:
    """Hold a master with timers and the stream of its replica, to which the log is shipped by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.master = TimerBench(root / "master")
        self.benches = [self.master]
        self.stream: ReplicaStream | None = None
        self.open()

    @property
    def replica(self) -> ReplicaStream:
        assert self.stream is not None
        return self.stream

    def open(self) -> None:
        """Open the replica as its process does."""
        directory = self.root / "replica"
        self.stream = ReplicaStream.open(directory, CONFIG, ReplicaFile(directory))

    def ship(self, *, follow: bool = True, confirm: bool = True) -> None:
        """Ship all of the master's log; the replica indexes it, and knows that it is confirmed."""
        ship(self.master.store, self.replica.store)
        if confirm:
            self.replica.confirm(self.replica.end)
        if follow:
            self.follow()

    def follow(self) -> None:
        while not self.replica.timers.follow():
            pass

    def checkpoint(self) -> None:
        write = self.replica.timers.checkpoint()
        if write is not None:
            write()

    def waiting(self) -> list[int]:
        """Return the replica's waiting offsets of the timer queue."""
        return waiting(self.replica.timers)

    def kill(self) -> None:
        """Leave the replica's directory as after SIGKILL."""
        stream, self.stream = self.replica, None
        stream.timers.close()
        stream.store._flusher.stop()
        stream.store._abandon()

    def stop(self) -> None:
        """Close the replica in order."""
        stream, self.stream = self.replica, None
        stream.close()

    def promote(self) -> TimerBench:
        """Start a master in the replica's directory, at the time of the former one."""
        if self.stream is not None:
            self.stop()
        successor = TimerBench(self.root / "replica")
        successor.clock.now = self.master.clock.now
        self.benches.append(successor)
        return successor

    def close(self) -> None:
        if self.stream is not None:
            self.stop()
        for each in self.benches:
            each.close()


def waiting(timers: ReplicaTimers) -> list[int]:
    found, _ = timers.log.waiting((0, MIN_KEY), EVER_MS, 1 << 20)
    return sorted(found["queue_offset"].tolist())


def kinds(timers: ReplicaTimers) -> list[int]:
    """Return the kinds of all entries in the runs."""
    return sorted(kind for run in timers.log.runs for kind in run.part(0, len(run))["kind"].tolist())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[TimerPair]:
    made = TimerPair(tmp_path)
    yield made
    made.close()


def test_replica_derives_the_masters_waiting_timers(pair: TimerPair) -> None:
    """Cover waiting, delivered, withdrawn and relocated messages, and all at once or one by one."""
    master = pair.master
    master.send(*(b"soon %d" % n for n in range(20)), after=1.0)
    messages = master.send(*(b"late %d" % n for n in range(20)), after=HOUR)
    pair.ship()
    assert pair.waiting() == list(range(40))
    master.clock.advance(1)
    assert len(master.deliver()) == 20
    assert master.recall(messages[3]) is RecallStatus.WITHDRAWN
    pair.ship()
    assert pair.waiting() == [n for n in range(20, 40) if n != 23]
    master.store.flush()
    master.core.rescue.want(master.store.max_physical_offset)
    while master.core.rescue.step():
        master.store.flush()
    pair.ship()
    assert len(pair.waiting()) == 19
    assert min(pair.waiting()) > 40
    timers = master.core.timers.log.waiting((0, MIN_KEY), EVER_MS, 1 << 20)[0]
    assert sorted(timers["queue_offset"].tolist()) == pair.waiting()


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("indexed", ["nothing", "waiting", "all", "all and checkpoint"])
def test_promotion_delivers_each_timer_once(pair: TimerPair, indexed: str, ending: str) -> None:
    """Cover a master that is lost before or after it has delivered a timer."""
    master = pair.master
    master.send(*(b"before %d" % n for n in range(10)), after=1.0)
    master.send(*(b"after %d" % n for n in range(10)), after=2.0)
    pair.ship(follow=indexed != "nothing")
    master.clock.advance(1)
    assert len(master.deliver()) == 10
    pair.ship(follow=indexed.startswith("all"))
    if indexed == "all and checkpoint":
        pair.checkpoint()
    master.clock.advance(1)
    master.deliver()  # the replica does not get these copies
    if ending == "kill":
        pair.kill()
    successor = pair.promote()
    successor.deliver()
    successor.kill()
    successor.clock.advance(2 * HOUR)
    assert successor.deliver() == []
    assert [each.body for each in successor.delivered()] == [
        b"%s %d" % (when, n) for when in (b"before", b"after") for n in range(10)
    ]


def test_promotion_searches_only_the_log_since_the_checkpoint(pair: TimerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.master.send(b"a", b"b", after=1.0)
    pair.master.send(b"late", after=HOUR)
    pair.master.clock.advance(1)
    pair.master.deliver()
    pair.ship()
    pair.checkpoint()
    end = pair.replica.store.max_physical_offset
    searched: list[int] = []
    search = timer_indexer.next_delivered_copies

    def recording_search(store: Store, begin: int) -> Any:
        searched.append(begin)
        return search(store, begin)

    monkeypatch.setattr(timer_indexer, "next_delivered_copies", recording_search)
    successor = pair.promote()
    assert searched == []
    assert successor.core.timers.log.enqueued == 3
    assert successor.core.timers.log.log_end >= end


def test_log_without_waiting_timers_is_not_searched(pair: TimerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.master.send(b"a", after=1.0)
    pair.master.clock.advance(1)
    pair.master.deliver()
    pair.ship()
    pair.checkpoint()
    monkeypatch.setattr(timer_indexer, "next_delivered_copies", None)
    for number in range(3):
        pair.master.send(b"at once %d" % number, after=-1.0)
        pair.ship()
    monkeypatch.undo()
    pair.master.send(b"b", after=1.0)
    pair.ship()
    assert pair.waiting() == [1]
    pair.master.clock.advance(1)
    pair.master.deliver()
    pair.ship()
    assert pair.waiting() == []


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("saved", ["journal", "run", "nothing"])
def test_copies_cut_from_a_replica_are_delivered_again(
    pair: TimerPair, monkeypatch: pytest.MonkeyPatch, saved: str, *, dies: bool
) -> None:
    """Cut delivered copies off, and fill their places with other messages before anything is delivered."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1 if saved == "run" else 1 << 15)
    master = pair.master
    master.send(*(b"%d" % n for n in range(5)), after=1.0)
    pair.ship()
    place = pair.replica.store.max_physical_offset
    master.clock.advance(1)
    assert len(master.deliver()) == 5
    master.send(*(b"lost %d" % n for n in range(5)), after=1.0)
    pair.ship(confirm=False)
    assert pair.waiting() == list(range(5, 10))
    if saved != "nothing":
        for _ in range(3):
            pair.checkpoint()
    if dies:
        pair.replica.store.order_truncation(place, 0)
        pair.kill()
        with Store.open(pair.root / "replica", CONFIG, is_replica=True):
            pass  # died before the timer log was opened
        pair.open()
    else:
        pair.replica.cut(StreamPosition(place, 0), 0)
    assert pair.replica.timers.log.log_end <= place
    # A new master has other messages, and more of them, at these positions.
    with Store.open(pair.root / "other", CONFIG) as other:
        other.follow()
        ship(pair.replica.store, other)
    other_master = TimerBench(pair.root / "other")
    other_master.clock.now = master.clock.now - 1
    other_master.send(*(b"new %d" % n for n in range(30)), after=5.0)
    ship(other_master.store, pair.replica.store)
    other_master.close()
    pair.follow()
    assert pair.waiting() == list(range(35))
    successor = pair.promote()
    assert successor.deliver() == [b"%d" % n for n in range(5)]
    successor.clock.advance(5)
    assert successor.deliver() == [b"new %d" % n for n in range(30)]


def test_timers_are_derived_anew_after_a_wiped_log(pair: TimerPair) -> None:
    pair.master.send(b"a", b"b", after=1.0)
    pair.ship()
    pair.checkpoint()
    assert pair.waiting() == [0, 1]
    pair.replica.begin_snapshot(StreamPosition(0, 1), keeps_log=False)
    assert pair.waiting() == []
    assert pair.replica.timers.log.enqueued == 0
    pair.ship()
    assert pair.waiting() == [0, 1]


def receive_copy(stream: ReplicaStream, master: Store) -> None:
    """Give a stream a copy of the master's state journal."""
    copy = master.journal.copy()
    stream.begin_snapshot(StreamPosition(stream.end.offset, copy.sequence), keeps_log=True)
    for part in copy.parts():
        stream.load(part.encode())
    stream.end_snapshot(copy.sequence, EpochMap())
    copy.close()


def test_copy_of_the_state_keeps_a_replicas_timers(tmp_path: Path) -> None:
    pair = TimerPair(tmp_path)
    master = pair.master
    master.send(b"a", b"b", after=1.0)
    master.deliver()
    master.checkpoint()
    pair.ship()
    pair.checkpoint()
    before = {path.name: path.read_bytes() for path in (tmp_path / "replica/raymq/timers").iterdir()}
    receive_copy(pair.replica, master.store)
    assert {path.name: path.read_bytes() for path in (tmp_path / "replica/raymq/timers").iterdir()} == before
    pair.follow()
    assert pair.waiting() == [0, 1]
    pair.close()


def confirmed_by(timers: TimerPair, *, confirm: bool) -> None:
    timers.master.send(b"filler", after=-1.0)
    timers.ship(confirm=confirm)
    timers.replica.store.flush()
    timers.checkpoint()


def test_ended_timers_leave_a_replicas_runs(pair: TimerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave only when their copies are confirmed: a cut of the log may take other copies."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)
    pair.master.send(*(b"%d" % n for n in range(20)), after=1.0)
    pair.master.send(b"late", after=5 * HOUR)
    pair.ship()
    pair.checkpoint()
    pair.master.clock.advance(1)
    assert len(pair.master.deliver()) == 20
    for _ in range(4):
        confirmed_by(pair, confirm=False)
    assert kinds(pair.replica.timers) == [EntryKind.WAITS] * 21 + [EntryKind.DELIVERED] * 20
    for _ in range(4):
        confirmed_by(pair, confirm=True)
    assert kinds(pair.replica.timers) == [EntryKind.WAITS]
    assert pair.waiting() == [20]
    successor = pair.promote()
    assert successor.deliver() == []
    successor.clock.advance(5 * HOUR)
    assert successor.deliver() == [b"late"]


def test_dropped_timer_is_refused_again_with_the_same_note(pair: TimerPair) -> None:
    """Nothing in the log says that a message could not be delivered."""
    master = pair.master
    master.send(b"sound", after=1.0)
    [damaged] = master.send(b"damaged", after=1.0)
    pair.ship()
    pair.checkpoint()
    place = int(master.store.entries(TIMER_TOPIC, 0, 1, 1)[0][0])
    pair.kill()
    for directory in (pair.root / "master", pair.root / "replica"):
        log = directory / "commitlog" / f"{0:020d}"
        with log.open("r+b") as stream:
            stream.seek(log.read_bytes().index(b"damaged", place))
            stream.write(b"D")
    master.clock.advance(1)
    assert master.deliver() == [b"sound"]
    [note] = master.core.set_aside.notes()
    successor = pair.promote()
    successor.core.set_aside.put([note])  # the master's event
    last = successor.store.journal.newest_of(successor.store.tables.quarantined)
    assert successor.deliver() == [b"sound"]
    assert successor.core.set_aside.notes() == [note]
    assert successor.store.journal.newest_of(successor.store.tables.quarantined) == last
    assert successor.recall(damaged) is RecallStatus.UNKNOWN
    successor.clock.advance(2 * HOUR)
    assert successor.deliver() == []


def test_copy_undoes_that_a_timer_was_dropped(pair: TimerPair) -> None:
    """Guard against the loss of a message whose topic was deleted by a change that no replica has.

    The master that had dropped the message becomes a replica, and is promoted before its successor has delivered it.
    """
    master = pair.master
    master.send(b"a", after=1.0)
    master.store.delete_topic("t")
    master.clock.advance(1)
    assert master.deliver() == []
    master.checkpoint()
    master.close()
    directory = pair.root / "master"
    stream = ReplicaStream.open(directory, CONFIG, ReplicaFile(directory))
    assert waiting(stream.timers) == []
    with Store.open(pair.root / "other", CONFIG) as successor:
        receive_copy(stream, successor)
    assert waiting(stream.timers) == [0]
    stream.close()
    pair.benches.remove(master)
