"""Rows that were staged for a queue that was taken from its topic before the commit come to one that is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.topic_manager import TopicChange
from raymq.client import Message
from tests.unit.actors.bench import Bench, encoded


@pytest.fixture
def staged(tmp_path: Path) -> Bench:
    """Two chunks for each of four queues."""
    bench = Bench(tmp_path / "broker-a")
    bench.core.topics.create("t", 4)
    for queue_id in range(4):
        for number in range(2):
            rows = [Message("t", b"%d.%d.%d" % (queue_id, number, row)) for row in range(3)]
            records, sizes = encoded(*rows, queue_id=queue_id)
            part = f"part{queue_id}"
            bench.core.staging.stage("write", part, number, ("t", queue_id), memoryview(records), np.array(sizes))
    return bench


PARTS = [f"part{number}" for number in range(4)]


def change(bench: Bench, reads: int, writes: int) -> None:
    bench.core.topics.change([TopicChange("t", reads, writes)])


def commit(bench: Bench) -> None:
    for _ in bench.core.staging.commit("write", PARTS, 24):
        pass
    bench.store.flush()
    bench.core.staging.close("write")
    assert bench.core.staging.missing("write") is None


def rows_of(queue_id: int) -> list[bytes]:
    return [b"%d.%d.%d" % (queue_id, number, row) for number in range(2) for row in range(3)]


def test_they_come_to_queues_that_are_read_in_their_order(staged: Bench) -> None:
    """They came to the queues that were gone: the write was complete, and nobody could read them."""
    change(staged, 2, 2)
    commit(staged)
    assert staged.store.queues("t") == [0, 1]
    assert staged.bodies("t", 0) == rows_of(0) + rows_of(2)
    assert staged.bodies("t", 1) == rows_of(1) + rows_of(3)
    assert [record.queue_id for record in staged.records("t", 1)] == [1] * 12
    staged.store.close()


def test_queues_that_are_still_read_get_theirs(staged: Bench) -> None:
    change(staged, 3, 2)
    commit(staged)
    assert [staged.bodies("t", queue_id) for queue_id in range(3)] == [rows_of(0), rows_of(1) + rows_of(3), rows_of(2)]
    staged.store.close()


@pytest.mark.parametrize("later", [1, 2, 4])
@pytest.mark.parametrize("chunks", [1, 3, 5, 7])
def test_where_they_come_is_decided_once(staged: Bench, chunks: int, later: int) -> None:
    """Whatever becomes of the topic between two attempts, each row is there once."""
    change(staged, 2, 2)
    attempt = staged.core.staging.commit("write", PARTS, 24)
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


def test_nobody_sees_a_part_of_them(staged: Bench) -> None:
    change(staged, 1, 1)
    attempt = staged.core.staging.commit("write", PARTS, 24)
    for _ in range(5):
        next(attempt)
    assert staged.store.max_offset("t", 0) == 0
    attempt.close()
    staged.crash()
    assert staged.store.max_offset("t", 0) == 0
    commit(staged)
    assert staged.store.max_offset("t", 0) == 24
    staged.store.close()
