"""Test that rows staged for a removed queue are committed to a readable queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.topic_manager import TopicChange
from raymq.client import Message
from tests import staged_rows
from tests.unit.actors.bench import Bench, encoded


@pytest.fixture
def staged(tmp_path: Path) -> Bench:
    """Stage two chunks for each of four queues."""
    bench = Bench(tmp_path / "broker-a")
    bench.core.topics.create("t", 4)
    for queue_id in range(4):
        for number in range(2):
            rows = [Message("t", b"%d.%d.%d" % (queue_id, number, row)) for row in range(3)]
            records, sizes = encoded(*rows, queue_id=queue_id)
            part = f"part{queue_id}"
            staged_rows.stage(
                bench.core.staging, "write", part, number, ("t", queue_id), memoryview(records), np.array(sizes)
            )
    return bench


PARTS = [f"part{number}" for number in range(4)]


def change(bench: Bench, reads: int, writes: int) -> None:
    bench.core.topics.change([TopicChange("t", reads, writes)])


def commit(bench: Bench) -> None:
    for _ in staged_rows.commit(bench.core.staging, "write", PARTS, 24):
        pass
    bench.store.flush()
    staged_rows.close(bench.core.staging, "write")
    assert bench.core.staging.table.missing("write") is None


def rows_of(queue_id: int) -> list[bytes]:
    return [b"%d.%d.%d" % (queue_id, number, row) for number in range(2) for row in range(3)]


def test_rows_of_removed_queues_move_in_order(staged: Bench) -> None:
    """Guard against committing rows to removed queues, where no consumer can read them."""
    change(staged, 2, 2)
    commit(staged)
    assert staged.store.queues("t") == [0, 1]
    assert staged.bodies("t", 0) == rows_of(0) + rows_of(2)
    assert staged.bodies("t", 1) == rows_of(1) + rows_of(3)
    assert [record.queue_id for record in staged.records("t", 1)] == [1] * 12
    staged.store.close()


def test_rows_stay_in_readable_queues(staged: Bench) -> None:
    change(staged, 3, 2)
    commit(staged)
    assert [staged.bodies("t", queue_id) for queue_id in range(3)] == [rows_of(0), rows_of(1) + rows_of(3), rows_of(2)]
    staged.store.close()


@pytest.mark.parametrize("later", [1, 2, 4])
@pytest.mark.parametrize("chunks", [1, 3, 5, 7])
def test_target_queue_is_decided_once(staged: Bench, chunks: int, later: int) -> None:
    """Check that each row is stored once, even if the topic changes between attempts."""
    change(staged, 2, 2)
    attempt = staged_rows.commit(staged.core.staging, "write", PARTS, 24)
    for _ in range(chunks):
        next(attempt)
    attempt.close()
    change(staged, later, later)
    staged.crash()
    commit(staged)
    assert sorted(staged.bodies("t", 0) + staged.bodies("t", 1)) == sorted(
        row for queue_id in range(4) for row in rows_of(queue_id)
    )
    assert staged.store.queues("t") == [0, 1]
    staged.store.close()


def test_rows_become_visible_together(staged: Bench) -> None:
    change(staged, 1, 1)
    attempt = staged_rows.commit(staged.core.staging, "write", PARTS, 24)
    for _ in range(5):
        next(attempt)
    assert staged.store.max_offset("t", 0) == 0
    attempt.close()
    staged.crash()
    assert staged.store.max_offset("t", 0) == 0
    commit(staged)
    assert staged.store.max_offset("t", 0) == 24
    staged.store.close()
