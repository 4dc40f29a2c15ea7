"""Test a replica whose log begins before its master's, which ships no older deletions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from tests.state_shipping import state_of
from tests.store_records import SMALL, append, make_record
from tests.store_replication import read_bodies

CONFIG = replace(SMALL, retention_hours=1, delete_at_hour="*")
LATER_MS = 1 << 60


@contextmanager
def follow_master(directory: Path, stream: ReplicaStream) -> Iterator[tuple[Store, StateRecorder]]:
    """Run a master that the replica follows after a snapshot."""
    recorder = StateRecorder.begin(directory, log_end=lambda: 0)
    with Store.open(directory, CONFIG) as master:
        recorder.log_end = lambda: master.max_physical_offset
        stream.states.master_begin = master.min_physical_offset
        snapshot = recorder.snapshot()
        stream.begin_snapshot(StreamPosition(stream.end.offset, snapshot.sequence), keeps_log=True)
        for part in snapshot.parts():
            stream.load(part)
        stream.end_snapshot(snapshot.sequence, EpochMap())
        snapshot.close()
        stream.begin_connection()
        yield master, recorder
    recorder.stop()


def ship(master: Store, recorder: StateRecorder, stream: ReplicaStream) -> None:
    """Ship all log and state in the master's order; the replica applies it."""
    while True:
        pending = recorder.after(stream.states.last)
        if not pending and stream.received.offset == master.max_physical_offset:
            break
        end = min([master.max_physical_offset, *(each.log_offset for each in pending[:1])])
        if stream.received.offset < end:
            with master.log_slice(stream.received.offset, end) as part:
                stream.write_log(part.offset, bytes(part.view), lambda: None)
        else:
            stream.write_states([each for each in pending if each.log_offset <= end])
    stream.write_log(stream.received.offset, b"", lambda: None)
    stream.confirm(stream.end)


def test_first_deletion_applies_where_new_master_lacks_second(tmp_path: Path) -> None:
    """Cover a first deletion that expired on the master, so that no master ships it."""
    first, second, its = tmp_path / "first", tmp_path / "second", tmp_path / "replica"
    stream = ReplicaStream.open(its, CONFIG, ReplicaFile(its), StateReplica(its))
    with follow_master(first, stream) as (master, recorder):
        append(master, *[make_record(b"old")] * 3)
        ship(master, recorder, stream)
        master.delete_topic("orders")
        for _ in range(4):
            append(master, make_record(2_000 * b"x", topic="busy"))
        append(master, make_record(b"new"))
        ship(master, recorder, stream)
        assert read_bodies(stream.store)["orders", 0] == [b"new"]
        master.flush()
        master._age.now_ms = lambda: LATER_MS  # type: ignore[method-assign]
        assert master.delete_expired().log_files
    shutil.copytree(first, second)
    with follow_master(first, stream) as (master, recorder):
        master.delete_topic("orders")
        ship(master, recorder, stream)
        assert ("orders", 0) not in read_bodies(stream.store)
        stream.store._save_checkpoint()
    with follow_master(second, stream) as (master, recorder):
        ship(master, recorder, stream)
        assert read_bodies(stream.store)["orders", 0] == read_bodies(master)["orders", 0] == [b"new"]
        assert stream.store.max_offset("orders", 0) == 1
        assert state_of(its) == state_of(second)
    stream.close()
    stream.states.close()
