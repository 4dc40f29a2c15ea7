"""Test that staged rows outlive the log files that they are in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.reading.pull_reader import pull
from raymq.actors.errors import InvalidInput, PermissionDenied
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.naming import is_system_topic
from raymq.client import Message
from raymq.storage.files.file_calls import replaced
from raymq.storage.log.checkpoint import CheckpointState
from raymq.storage.oldest_delayed import oldest_delayed_offset
from raymq.storage.records.record import encode
from raymq.storage.staged_topic import STAGED_TOPIC
from raymq.storage.store_paths import StorePaths
from tests import staged_rows
from tests.crash.power_loss import Disk
from tests.staged_rows import chunks_of
from tests.unit.actors.bench import CONFIG, Bench

HOURS = 3_600.0
BODIES = [b"%d %d" % (number, each) for number in range(3) for each in range(5)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "broker")
    made.core.topics.create("t", 1)
    yield made
    made.store.close()


def row(body: bytes) -> bytes:
    return encode("t", 0, body, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))


def stage(bench: Bench, transaction: str = "tx") -> None:
    for number in range(3):
        rows = [row(body) for body in BODIES[5 * number : 5 * number + 5]]
        sizes = np.array([*map(len, rows)], np.int32)
        staged_rows.stage(
            bench.core.staging, transaction, "p", number, ("t", 0), memoryview(b"".join(rows)), sizes, "home"
        )


def fill(bench: Bench, files: int) -> None:
    """Fill log files with messages of another topic."""
    bench.core.topics.create("other", 1)
    for _ in range(3 * files):
        bench.append(Message("other", bytes(300_000)))


def expire(bench: Bench, turns: int = 9) -> None:
    """Let all log files but the newest expire."""
    bench.clock.advance(100 * HOURS)
    fill(bench, 1)
    bench.store.flush()
    for _ in range(turns):
        bench.core.delete_expired(asked=True)
        bench.store.flush()
        bench.store.sync_state()


def commit(bench: Bench, transaction: str = "tx") -> list[bytes]:
    assert sum(staged_rows.commit(bench.core.staging, transaction, ["p"], len(BODIES))) == len(BODIES)
    bench.store.flush()
    staged_rows.close(bench.core.staging, transaction)
    assert bench.core.staging.table.missing(transaction) is None
    return bench.bodies("t")


@pytest.mark.parametrize("times", [1, 3])
def test_staged_rows_outlive_their_log_files(bench: Bench, times: int) -> None:
    stage(bench)
    for _ in range(times):
        begin = bench.store.min_physical_offset
        fill(bench, 2)
        expire(bench)
        assert bench.store.min_physical_offset > begin
    bench.crash()
    assert bench.bodies("t") == []
    assert commit(bench) == BODIES


def test_expired_files_of_interrupted_commit_lose_no_row(bench: Bench) -> None:
    stage(bench)
    assert next(staged_rows.commit(bench.core.staging, "tx", ["p"], len(BODIES))) == 5
    fill(bench, 2)
    for number, begin in enumerate([chunk.begin for chunk in chunks_of(bench.store, "tx")]):
        bench.core.rescue.relocate_before(bench.store.max_physical_offset - 1)
        bench.store.flush()
        if number == 1:
            bench.crash()
        bench.core.rescue.relocate_before(bench.store.max_physical_offset - 1)
        assert chunks_of(bench.store, "tx")[number].begin != begin
    assert sum(staged_rows.commit(bench.core.staging, "tx", ["p"], len(BODIES))) == 10
    staged_rows.close(bench.core.staging, "tx")
    assert bench.bodies("t") == BODIES


def test_finished_and_replaced_chunks_keep_no_file(bench: Bench) -> None:
    stage(bench)
    commit(bench)
    stage(bench, "dropped")
    staged_rows.abort(bench.core.staging, "dropped")
    stage(bench, "again")
    fill(bench, 2)
    end = bench.store.max_physical_offset
    stage(bench, "again")
    begin = bench.core.staging.chunks.first_log_position()
    assert begin is not None
    assert begin >= end
    bench.crash()
    assert bench.core.staging.chunks.first_log_position() == begin


def test_file_is_kept_until_replicas_have_the_rows(bench: Bench) -> None:
    stage(bench)
    fill(bench, 2)
    before = bench.store.max_offset(STAGED_TOPIC, 0)
    bench.store.confirmed.hold(bench.store.max_physical_offset)
    expire(bench)
    assert bench.store.max_offset(STAGED_TOPIC, 0, written=True) == before + 3, "each was stored again once"
    assert bench.store.min_physical_offset == 0
    bench.store.confirmed.advance(bench.store.max_physical_offset)
    expire(bench)
    bench.store.confirmed.advance(bench.store.max_physical_offset)
    expire(bench)
    assert bench.store.min_physical_offset > 0


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("turns", [1, 2, 3, 9])
def test_power_loss_after_removal_of_files_loses_no_row(tmp_path: Path, luck: float, turns: int) -> None:
    (tmp_path / "0").mkdir()
    disk = Disk(tmp_path / "0")
    with replaced(disk):
        bench = Bench(tmp_path / "0", replace(CONFIG, flush_interval_ms=3_600_000))
        bench.core.topics.create("t", 1)
        stage(bench)
        fill(bench, 2)
        bench.store._save_checkpoint()
        bench.clock.advance(100 * HOURS)
        for turn in range(turns):
            bench.core.delete_expired(asked=True)
            bench.store.flush()
            if turn == 4:
                bench.store.sync_state()
        assert (bench.store.min_physical_offset > 0) is (turns == 9)
        assert bench.store.wait_for_removals(30)
        disk.after_power_loss(tmp_path / "1", random.Random(turns), luck)
        bench.core.timers.close()
        bench.store.close()
    disk.close()
    again = Bench(tmp_path / "1")
    assert commit(again) == BODIES
    again.store.close()


def test_start_on_full_disk_keeps_files_with_staged_rows(bench: Bench) -> None:
    fill(bench, 1)
    stage(bench)
    [first, *_] = chunks_of(bench.store, "tx")
    fill(bench, 3)
    bench.store._save_checkpoint()
    paths = StorePaths(bench.directory)

    def oldest() -> int:
        bench.store._flusher.stop()
        bench.store._abandon()
        state = CheckpointState.load(paths.state)
        assert state is not None
        found = oldest_delayed_offset(paths, bench.config, state, log_min=0, before=state.dispatched_to)
        bench.open()
        return found

    assert oldest() == first.begin
    commit(bench)
    bench.store._save_checkpoint()
    assert oldest() > 3 << 20


def test_row_longer_than_a_record_is_staged_in_pieces(bench: Bench) -> None:
    """Cover rows that were accepted before the brokers' limit was lowered, too."""
    body = random.Random(1).randbytes(700_000)
    record = row(body)
    sizes = np.array([len(record)], np.int32)
    staged_rows.stage(bench.core.staging, "tx", "p", 0, ("t", 0), memoryview(record), sizes, "home")
    [chunk] = chunks_of(bench.store, "tx")
    assert len(chunk.places) == 3
    fill(bench, 2)
    bench.config = replace(bench.config, max_message_bytes=1_000)
    bench.crash()
    bench.clock.advance(100 * HOURS)
    for _ in range(9):
        bench.core.delete_expired(asked=True)
        bench.store.flush()
        bench.store.sync_state()
    [moved] = chunks_of(bench.store, "tx")
    assert moved.places[0][0] > chunk.places[-1][0]
    assert bench.core.staging.chunks.read("tx", moved).records == record


def test_no_client_reaches_the_topic_of_staged_rows(bench: Bench) -> None:
    stage(bench)
    assert bench.store.max_offset(STAGED_TOPIC, 0) == 3
    assert is_system_topic(STAGED_TOPIC)
    record = encode(STAGED_TOPIC, 0, b"x", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    with pytest.raises(InvalidInput, match="own topics"):
        bench.core.append(STAGED_TOPIC, 0, memoryview(record), np.array([len(record)], np.int32))
    with pytest.raises(PermissionDenied):
        pull(bench.core, "g", FetchSpec(STAGED_TOPIC, 0, 0), 10, 1 << 20)
    with pytest.raises(PermissionDenied):
        bench.core.topics.delete(STAGED_TOPIC)
    with pytest.raises(InvalidInput):
        Message(STAGED_TOPIC, b"x")
