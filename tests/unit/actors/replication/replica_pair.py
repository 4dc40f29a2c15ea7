"""Hold a master's store and a replica's stream, without a connection between them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage import expired_queue_offsets
from raymq.storage.config import StoreConfig
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.store import Store
from tests.state_shipping import content_of, keep_events
from tests.store_records import SMALL
from tests.store_replication import read_bodies


class ReplicaPair:
    """A master in `root`/master, and its replica in `root`/replica."""

    def __init__(self, root: Path, config: StoreConfig = SMALL, master: str = "master") -> None:
        self.root = root
        self.config = config
        self.master = keep_events(Store.open(root / master, config))
        self.stream = self._opened()
        self.copy()

    def _opened(self) -> ReplicaStream:
        directory = self.root / "replica"
        return ReplicaStream.open(directory, self.config, ReplicaFile(directory))

    @property
    def follower(self) -> Store:
        return self.stream.store

    def restart_master(self, name: str = "master", config: StoreConfig | None = None) -> None:
        """Close the master, and open a directory as the master that follows it."""
        self.master.close()
        self.master = keep_events(Store.open(self.root / name, config or self.config))

    def copy(self, *, keeps_log: bool = True, cut: int | None = None) -> None:
        """Give the replica a copy of the master's state journal."""
        stream, master = self.stream, self.master
        stream.master_begin = begin = master.min_physical_offset
        ends = run_steps(master.expired_ends(stream.extent.begin.offset if keeps_log else 0))
        copy = master.journal.copy()
        offset = min(stream.end.offset, master.max_physical_offset) if keeps_log else begin
        stream.begin_snapshot(StreamPosition(offset if cut is None else cut, copy.sequence), keeps_log=keeps_log)
        for part in itertools.chain(copy.parts(), expired_queue_offsets.parts(ends)):
            stream.load(part.encode())
        stream.end_snapshot(copy.sequence, EpochMap())
        copy.close()
        stream.begin_connection()

    def ship(self, *, most_bytes: int = 1 << 20, steps: int | None = None) -> None:
        """Ship log and events in the order in which the master made them."""
        backlog = self.master.journal.backlog
        assert backlog is not None
        for _ in itertools.count() if steps is None else range(steps):
            pending = backlog.after(self.follower.journal.last)
            begin = self.follower.received_offset
            end = min([self.master.max_physical_offset, *(each.log_offset for each in pending[:1])])
            if begin < end:
                with self.master.log_slice(begin, min(end, begin + most_bytes)) as part:
                    self.stream.write_log(part.offset, bytes(part.view), lambda: None)
            elif pending:
                self.stream.write_events([each for each in pending if each.log_offset <= end])
            else:
                break
        self.stream.confirm(self.stream.end)

    def ship_log(self, random_: random.Random | None = None) -> None:
        """Ship the log without the events."""
        while (begin := self.follower.received_offset) < self.master.max_physical_offset:
            most = 700 if random_ is None else random_.randint(1, 700)
            with self.master.log_slice(begin, min(begin + most, self.master.max_physical_offset)) as part:
                self.stream.write_log(part.offset, bytes(part.view), lambda: None)

    def reopen(self, *, killed: bool) -> None:
        """Close or kill the replica, and open it again."""
        if killed:
            self.kill()
        else:
            self.stream.close()
        self.stream = self._opened()
        self.stream.confirm(self.stream.end)

    def kill(self) -> None:
        """Leave the replica's directory as a kill does."""
        self.follower._flusher.stop()
        self.follower._abandon()

    def check_equal(self) -> None:
        """Check that the replica has the master's messages and tables."""
        assert read_bodies(self.follower) == read_bodies(self.master)
        ours, theirs = content_of(self.follower.tables), content_of(self.master.tables)
        differing = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
        assert not differing, differing

    def close(self) -> None:
        self.stream.close()
        self.master.close()
