"""Test a topic deletion that fails on a full disk after reaching the replicas."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.errors import StoreError, StoreFailed
from raymq.storage.files import file_calls
from raymq.storage.files.file_calls import replaced
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from tests.faulty_calls import FaultyCalls
from tests.state_shipping import state_of
from tests.store_records import SMALL, append, make_record, write_entries
from tests.store_replication import read_bodies


class Pair:
    """Hold a master and its replica, opened as a broker opens it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recorder = StateRecorder.begin(root / "master", log_end=lambda: 0)
        self.master = Store.open(root / "master", SMALL)
        self.recorder.log_end = lambda: self.master.max_physical_offset
        self.states = StateReplica(root / "replica")
        self.memory = ReplicaFile(root / "replica")
        self.stream = ReplicaStream.open(root / "replica", SMALL, self.memory, self.states)

    def connect(self) -> None:
        """Begin a connection, with a snapshot if the replica has no state."""
        self.states.master_begin = self.master.min_physical_offset
        if not self.states.last:
            snapshot = self.recorder.snapshot()
            self.stream.begin_snapshot(StreamPosition(self.stream.end.offset, snapshot.sequence), keeps_log=True)
            for part in snapshot.parts():
                self.stream.load(part)
            self.stream.end_snapshot(snapshot.sequence, EpochMap())
            snapshot.close()
        self.stream.begin_connection()

    def ship(self) -> None:
        """Ship all log and state, in the order in which the master made it."""
        while True:
            pending = self.recorder.after(self.states.last)
            begin, end = self.stream.store.received_offset, self.master.max_physical_offset
            end = min([end, *(each.log_offset for each in pending[:1])])
            if begin < end:
                with self.master.log_slice(begin, end) as part:
                    self.stream.write_log(part.offset, bytes(part.view), lambda: None)
            elif pending:
                self.stream.write_states([each for each in pending if each.log_offset <= end])
            else:
                break
        self.stream.confirm(self.stream.end)

    def reopen(self) -> None:
        """Reopen the replica, as a broker does after a failed step."""
        self.stream.store.close()
        self.stream = ReplicaStream.open(self.root / "replica", SMALL, self.memory, self.states)


@pytest.mark.parametrize("starts_anew", [False, True])
def test_replica_restores_topic_after_failed_deletion(tmp_path: Path, starts_anew: bool) -> None:
    pair = Pair(tmp_path)
    pair.connect()
    append(pair.master, *[make_record(b"kept")] * 3)
    append(pair.master, make_record(b"other", topic="other"))
    pair.ship()
    write_entries(pair.master)
    renames = FaultyCalls("rename", 1, errno.ENOSPC, real=file_calls.current)
    full = FaultyCalls("truncate", 1, errno.ENOSPC, real=renames)
    with replaced(full), pytest.raises(StoreError):
        pair.master.delete_topic("orders")
    append(pair.master, make_record(b"next"))
    pair.ship()
    assert read_bodies(pair.stream.store)["orders", 0] == [b"next"], "it goes by what it was told"
    if starts_anew:
        pair.reopen()

    pair.master.delete_topic("other")
    append(pair.master, make_record(b"last"))
    with pytest.raises(StoreFailed, match="the deletion of topics was undone"):
        pair.ship()
    pair.reopen()
    pair.connect()
    pair.ship()
    assert read_bodies(pair.stream.store) == read_bodies(pair.master)
    assert read_bodies(pair.stream.store)["orders", 0] == [*[b"kept"] * 3, b"next", b"last"]
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")
    pair.reopen()
    pair.stream.confirm(pair.stream.end)
    assert read_bodies(pair.stream.store) == read_bodies(pair.master)
    pair.stream.close()
    pair.states.close()
    pair.master.close()
    pair.recorder.stop()
