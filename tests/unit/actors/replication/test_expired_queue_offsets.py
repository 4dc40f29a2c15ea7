"""Test that a replica knows the end offsets of queues whose messages have expired."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.log import entry_writer
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.state import expired_queue_offsets
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from tests.store_records import SMALL, append, make_record
from tests.store_replication import ship

CONFIG = replace(SMALL, commitlog_file_bytes=1 << 14, retention_hours=1, delete_at_hour="*")


@pytest.mark.parametrize("made_anew", [False, True])
def test_replica_never_reuses_expired_offsets(tmp_path: Path, made_anew: bool) -> None:
    """Also cover a topic that was deleted and created again before."""
    now_ms = 1_700_000_000_000
    directory, its = tmp_path / "master", tmp_path / "replica"
    recorder = StateRecorder.begin(directory, log_end=lambda: 0)
    with Store.open(directory, CONFIG, now_ms=lambda: now_ms) as master:
        recorder.log_end = lambda: master.max_physical_offset
        if made_anew:
            append(master, make_record(b"former", topic="quiet"))
            master.delete_topic("quiet")
        append(master, *[make_record(b"quiet", topic="quiet")] * 3)
        master.consumer_offsets.commit("g", "quiet", 0, 3)
        for _ in range(4):
            append(master, make_record(10_000 * b"x", topic="busy"))
        master.flush()
        now_ms += 2 * 3_600_000
        append(master, make_record(b"y", topic="busy"))
        master.flush()
        assert master.delete_expired().log_files
        assert master.min_offset("quiet", 0) == master.max_offset("quiet", 0) == 3

        its.mkdir()
        stream = ReplicaStream.open(its, CONFIG, ReplicaFile(its), StateReplica(its))
        stream.begin_snapshot(StreamPosition(master.min_physical_offset, 0), keeps_log=False)
        snapshot = recorder.snapshot()
        for part in chain(snapshot.parts(), expired_queue_offsets.parts(run_steps(master.expired_ends()))):
            stream.load(part)
        stream.end_snapshot(snapshot.sequence, EpochMap())
        snapshot.close()
        ship(master, stream.store)
        stream.close()
        stream.states.close()
    recorder.stop()
    with Store.open(its, CONFIG) as elected:
        assert elected.consumer_offsets.get("g", "quiet", 0) == 3
        assert append(elected, make_record(b"new", topic="quiet")).queue_offsets.tolist() == [3]


def test_replica_with_shorter_log_never_reuses_offsets(tmp_path: Path) -> None:
    """Cover a former master that expired files and deleted a topic on its own.

    The new master still has these files, and knows nothing of the deletion.
    """
    now_ms = 1_700_000_000_000
    directory, its = tmp_path / "master", tmp_path / "replica"
    with Store.open(directory, CONFIG, now_ms=lambda: now_ms) as store:
        append(store, *[make_record(b"quiet", topic="quiet")] * 3)
        append(store, *[make_record(10_000 * b"x", topic="busy")] * 4)
    shutil.copytree(directory, its)
    now_ms += 2 * 3_600_000
    with Store.open(its, CONFIG, now_ms=lambda: now_ms) as former:
        assert former.delete_expired().log_files
        former.delete_topic("quiet")
    recorder = StateRecorder.begin(directory, log_end=lambda: 0)
    with Store.open(directory, CONFIG, now_ms=lambda: now_ms) as master:
        assert (master.min_offset("quiet", 0), master.max_offset("quiet", 0)) == (0, 3)
        stream = ReplicaStream.open(its, CONFIG, ReplicaFile(its), StateReplica(its))
        begin = stream.extent.begin.offset
        stream.begin_snapshot(StreamPosition(master.max_physical_offset, 0), keeps_log=True)
        snapshot = recorder.snapshot()
        for part in chain(snapshot.parts(), expired_queue_offsets.parts(run_steps(master.expired_ends(begin)))):
            stream.load(part)
        stream.end_snapshot(snapshot.sequence, EpochMap())
        snapshot.close()
        stream.close()
        stream.states.close()
    recorder.stop()
    with Store.open(its, CONFIG) as elected:
        assert append(elected, make_record(b"new", topic="quiet")).queue_offsets.tolist() == [3]


def test_many_queue_ends_are_loaded_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the memory: entries for expired messages may equal the queue files in size."""
    monkeypatch.setattr(entry_writer, "_MAX_UNWRITTEN_BYTES", 2_000)
    waiting: list[int] = []
    real = ConsumeQueue.extend

    def extend(queue: ConsumeQueue, max_offset: int) -> None:
        real(queue, max_offset)
        assert queue._writer is not None
        waiting.append(queue._writer.added - queue._writer._written)

    monkeypatch.setattr(ConsumeQueue, "extend", extend)
    aside = expired_queue_offsets.expired_queues_file(tmp_path)
    aside.parent.mkdir()
    aside.write_text(json.dumps({"quiet": dict.fromkeys(range(40), 15)}))
    with Store.open(tmp_path, CONFIG) as store:
        assert [store.max_offset("quiet", queue_id) for queue_id in range(40)] == [15] * 40
        assert max(waiting) <= 3_000
