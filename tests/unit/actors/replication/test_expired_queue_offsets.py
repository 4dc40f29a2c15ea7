"""Test that a replica knows the end offsets of queues whose messages have expired."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.log import entry_writer
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from tests.store_records import SMALL, append, make_record
from tests.unit.actors.replication.replica_pair import ReplicaPair

CONFIG = replace(SMALL, commitlog_file_bytes=1 << 14, retention_hours=1, delete_at_hour="*")
LATER_MS = 1 << 60


@pytest.mark.parametrize("made_anew", [False, True])
def test_replica_never_reuses_expired_offsets(tmp_path: Path, made_anew: bool) -> None:
    """Also cover a topic that was deleted and created again before."""
    pair = ReplicaPair(tmp_path, CONFIG)
    master = pair.master
    if made_anew:
        append(master, make_record(b"former", topic="quiet"))
        master.delete_topic("quiet")
    append(master, *[make_record(b"quiet", topic="quiet")] * 3)
    master.consumer_offsets.commit("g", "quiet", 0, 3)
    for _ in range(4):
        append(master, make_record(10_000 * b"x", topic="busy"))
    append(master, make_record(b"y", topic="busy"))
    master.flush()
    master._age.now_ms = lambda: LATER_MS  # type: ignore[method-assign]
    assert master.delete_expired().log_files
    assert master.min_offset("quiet", 0) == master.max_offset("quiet", 0) == 3
    pair.copy(keeps_log=False)
    pair.ship()
    pair.close()
    assert not StorePaths(tmp_path / "replica").expired_queues.exists()
    with Store.open(tmp_path / "replica", CONFIG) as elected:
        assert elected.consumer_offsets.get("g", "quiet", 0) == 3
        assert append(elected, make_record(b"new", topic="quiet")).queue_offsets.tolist() == [3]


def test_replica_with_shorter_log_never_reuses_offsets(tmp_path: Path) -> None:
    """Cover a former master that expired files and deleted a topic on its own.

    The new master still has these files, and knows nothing of the deletion.
    """
    its = tmp_path / "replica"
    with Store.open(tmp_path / "master", CONFIG) as store:
        append(store, *[make_record(b"quiet", topic="quiet")] * 3)
        append(store, *[make_record(10_000 * b"x", topic="busy")] * 4)
    shutil.copytree(tmp_path / "master", its)
    with Store.open(its, CONFIG) as former:
        former._age.now_ms = lambda: LATER_MS  # type: ignore[method-assign]
        assert former.delete_expired().log_files
        former.delete_topic("quiet")
    pair = ReplicaPair(tmp_path, CONFIG)
    assert (pair.master.min_offset("quiet", 0), pair.master.max_offset("quiet", 0)) == (0, 3)
    pair.copy()
    pair.close()
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
    aside = StorePaths(tmp_path).expired_queues
    aside.parent.mkdir(parents=True)
    aside.write_text(json.dumps({"quiet": dict.fromkeys(range(40), 15)}))
    with Store.open(tmp_path, CONFIG) as store:
        assert [store.max_offset("quiet", queue_id) for queue_id in range(40)] == [15] * 40
        assert max(waiting) <= 3_000
