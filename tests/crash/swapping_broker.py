"""A group of two whose master and replica swap roles, each keeping its directory; with its clients' expectations.

A life is the time of one master: it begins its epoch at the end of its stream, may work alone for a while, and then has
the former master as a replica. That one truncates its tail, takes a copy of the journal, or just continues. The master
dies within a call, or between two, or steps down in order; the replica may die while it connects. The steps are those
of real brokers (`ReplicationSender`, `ReplicationReceiver`, `ReplicaStream`), without connections.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.store import Store
from tests.crash.killing_calls import Killed, KillingCalls
from tests.crash.power_loss_broker import PowerLossBroker
from tests.crash.replication_link import ReplicationLink
from tests.state_journals import wait_for_compaction
from tests.state_shipping import content_of, state_of
from tests.store_replication import log_content

#: Each life uses one of these.
_DELAY_LEVELS = ("1s 5s 10s", "10s 5s 1s", "1m 2m 3m")


class SwappingBroker(PowerLossBroker):
    """A broker for which acknowledged messages count once `flush` or `checkpoint` has shipped them.

    Attributes:
        verdicts: the kinds of verdicts that returning replicas got.
        kills: how many processes were killed within an operation.
        compared: how often a replica's files and tables were compared with its master's, and were equal.
    """

    def __init__(self, root: Path, random_: random.Random, *, sync: bool) -> None:
        super().__init__(root, random_, sync=sync)
        self.directory.rmdir()
        self.verdicts: list[type] = []
        self.kills = self.compared = 0
        self.epoch = 0
        self._directories = root / "a", root / "b"
        self._calls = KillingCalls()
        #: By directory number: what stays of a process that lives on, as a replica or as the master before.
        self._left: dict[int, ReplicaStream | ReplicationBacklog] = {}
        #: The replica that becomes the master.
        self._elected: ReplicaStream | None = None
        self._line: ReplicationLink | None = None

    def live(self, works: int) -> None:
        """Run five lives of so many operations, and a last one that must deliver all acknowledged messages."""
        with replaced(self._calls):
            for _ in range(5):
                with self.life():
                    for _ in range(works):
                        self.some_work()
            with self.life(is_last=True):
                for work in (self.send, self.delay, self.set_timer, self.send_numbered, self.send):
                    work()
                    work()
                self.flush()
                self.settle()
                self.check()

    @contextmanager
    def life(self, *, is_last: bool = False) -> Iterator[None]:
        """Run the time of one master. A kill may end it at any operation."""
        master, other = self.epoch % 2, (self.epoch + 1) % 2
        self.epoch += 1
        self._begin_office(master)
        if self._random.random() < 0.5:
            for _ in range(self._random.choice((1, 5))):
                self._random.choice((self.send, self.delay, self.set_timer, self.save_producers))()
        if not is_last and self._random.random() < 0.5:
            self._calls.arm(self._directories[other], self._random.choice((1, 5, 20, 60, 150)))
        stream = self._connected(other)
        self._calls.disarm()
        self._compare_sometimes(0.3)
        if not is_last and self._random.random() < 0.5:
            self._calls.arm(self.directory, self._random.choice((5, 30, 100, 300, 1_000)))
        with suppress(Killed):
            yield
        is_killed = self._calls.is_dead
        self._end_office(master, is_killed=is_killed)
        self._left[other] = stream

    def close(self) -> None:
        """Close what the last life left open."""
        for each in self._left.values():
            if isinstance(each, ReplicaStream):
                _abandon_stream(each)

    def _begin_office(self, master: int) -> None:
        if self._random.random() < 0.3:
            self.config = replace(self.config, delay_levels=self._random.choice(_DELAY_LEVELS))
        former = self._left.get(master)
        if isinstance(former, ReplicaStream) and self._random.random() < 0.4:  # its process was replaced
            _abandon_stream(former)
            del self._left[master]
        self._elected = stream = self._stream_of(master)
        self.epochs = stream.begin_epoch_at(stream.end, self.epoch)
        self.directory, self._line = self._directories[master], None
        self.known.acknowledged = [body for body in self.known.acknowledged if body in self.known.durable]
        self._open()

    def _open_store(self) -> Store:
        assert self._elected is not None
        store, self._elected = self._elected.lead(memory_lost=False), None
        store.confirmed.advance(1 << 62)  # the test's clients read at once what they have sent
        store._writer._now_ms = lambda: int(self.clock.now * 1000)
        return store

    def _connected(self, number: int) -> ReplicaStream:
        """Connect the other directory as a replica, and ship everything to it."""
        while True:
            stream = None
            try:
                stream = self._stream_of(number)
                line = ReplicationLink(self, stream)
                line.connect()
                line.all()
            except Killed:
                if stream is not None:
                    _abandon_stream(stream)
                self._be_killed(number)
            else:
                self._line = line
                return stream

    def _stream_of(self, number: int) -> ReplicaStream:
        former, directory = self._left.pop(number, None), self._directories[number]
        if isinstance(former, ReplicaStream):
            return former
        directory.mkdir(exist_ok=True)
        return ReplicaStream.open(directory, self.config, ReplicaFile(directory), former)

    def _end_office(self, master: int, *, is_killed: bool) -> None:
        assert self._line is not None
        if not is_killed:
            self._calls.disarm()
        wait_for_compaction(self.store)
        if not is_killed:
            self._compare_sometimes(0.3)
        self._line.some(self._random)
        if not is_killed and self._random.random() < 0.4:
            self.core.timers.close()
            self.store.close()
            assert self.store.journal.backlog is not None
            self._left[master] = self.store.journal.backlog
            return
        self.core.timers.log.close()
        _abandon(self.store)
        if is_killed:
            self._be_killed(master)

    def _be_killed(self, number: int) -> None:
        self.kills += 1
        self._calls.take_place()
        self._left.pop(number, None)

    def _compare_sometimes(self, share: float) -> None:
        assert self._line is not None
        if self._random.random() < share and self.store.max_physical_offset:
            self._line.all()
            for store in (self.store, self._line.store):
                store.wait_for_removals()
            first, second = (state_of(directory) for directory in self._directories)
            assert first == second == content_of(self._line.store.tables)
            logs = [log_content(directory) for directory in self._directories]
            assert logs[0] == logs[1]
            assert due_times(self.store) == due_times(self._line.store)
            self.compared += 1

    # -- what clients do -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Ship everything: all acknowledged messages are on the replica."""
        self.store.flush()
        if self._line is not None:
            self._line.all()
            self.known.durable.update(self.known.acknowledged)

    def checkpoint(self) -> None:
        """Save the store's checkpoint."""
        self.store._save_checkpoint()
        self.flush()

    def stage(self) -> None:
        """Stage, and ship it before the client continues; a killed stage is not committed."""
        before = set(self._staged)
        try:
            super().stage()
            self.flush()
        except Killed:
            for name in self._staged.keys() - before:
                del self._staged[name]
            raise

    def delete_and_make_again(self) -> None:
        """Delete a topic and create it again; a killed call may have deleted it."""
        before = {body for body in self.known.acknowledged if body.startswith(b"v ")}
        try:
            super().delete_and_make_again()
        except Killed:
            self.known.void.update(before)
            raise

    def _append_numbered(self, bodies: list[bytes]) -> None:
        try:
            super()._append_numbered(bodies)
        except Killed:
            self._unanswered = bodies
            raise

    def _acknowledged(self, bodies: list[bytes], *, durable: bool = False) -> None:
        self.known.acknowledged += bodies
        if self._sync or durable:
            self.flush()


def due_times(store: Store) -> list[list[int]]:
    """Return the due times of the messages of each delay level."""
    queues = [store._parts.dispatcher.queues.get((SCHEDULE_TOPIC, queue_id)) for queue_id in range(3)]
    return [
        queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)["tags_code"].tolist()
        for queue in queues
        if queue is not None and queue.max_offset > queue.min_offset
    ]


def _abandon_stream(stream: ReplicaStream) -> None:
    """Leave store and timer log as after SIGKILL."""
    stream.timers.close()
    _abandon(stream.store)


def _abandon(store: Store) -> None:
    """Leave the store as after SIGKILL."""
    store._flusher.stop()
    with suppress(Killed):
        store._abandon()
