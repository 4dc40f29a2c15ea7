"""Test that a commit of many parts does proportional work in small steps."""

from __future__ import annotations

import asyncio
import os
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.storage.files.file_calls import FileCalls
from raymq.storage.files.file_calls import replaced as replaced_calls
from raymq.storage.log.log_salvage import DamagedRange
from raymq.storage.records.record import Record, encode
from raymq.storage.tables.staged_chunk import ChunkEntry, StagedChunk
from tests import staged_rows
from tests.unit.actors.bench import CONFIG, Bench


class CountingFileCalls(FileCalls):
    """Count opened files and listed folders by thread."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()

    def open(self, path: Path, flags: int) -> int:
        self.calls[threading.get_ident()] += 1
        return super().open(path, flags)

    def scan(self, folder: Path) -> list[os.DirEntry[str]]:
        self.calls[threading.get_ident()] += 1
        return super().scan(folder)


def row(body: bytes, queue_id: int = 0) -> bytes:
    return encode("t", queue_id, body, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))


def stage(bench: Bench, part: str, rows: list[bytes], number: int = 0, transaction: str = "tx") -> None:
    sizes = np.array([len(each) for each in rows], np.int32)
    staged_rows.stage(
        bench.core.staging, transaction, part, number, ("t", 0), memoryview(b"".join(rows)), sizes, "home"
    )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.core.topics.create("t", 1)
    yield made
    made.store.close()


def test_commit_of_many_parts_opens_no_file(bench: Bench) -> None:
    for number in range(60):
        stage(bench, f"part{number}", [row(b"%d" % number)])
    counted = CountingFileCalls()
    with replaced_calls(counted):
        assert sum(staged_rows.commit(bench.core.staging, "tx", [f"part{number}" for number in range(60)], 60)) == 60
    assert sum(counted.calls.values()) <= 20
    assert bench.store.max_offset("t", 0, written=True) == 60


def test_each_commit_step_reads_one_chunk_at_most(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        stage(bench, f"part{number}", [row(b"%d" % number)])
    read, reads = bench.core.staging.chunks.read, list[str]()

    def recording_read(transaction: str, chunk: ChunkEntry) -> StagedChunk:
        reads.append(chunk.part)
        return read(transaction, chunk)

    monkeypatch.setattr(bench.core.staging.chunks, "read", recording_read)

    async def commit() -> int:
        most = 0
        committing = asyncio.ensure_future(
            StagedCommits(bench.core, LocalAcks(bench.core.store)).commit(
                "tx", {f"part{number}": 1 for number in range(60)}
            )
        )
        while not committing.done():
            before = len(reads)
            await asyncio.sleep(0)
            most = max(most, len(reads) - before)
        assert (await committing).added == 60
        return most

    assert asyncio.run(commit()) == 1
    assert len(reads) == 60
    assert len(bench.bodies("t")) == 60


def test_unstaged_parts_are_not_in_the_decision(bench: Bench) -> None:
    for number in range(20):
        stage(bench, f"part{number}", [row(b"x")])
    assert list(staged_rows.commit(bench.core.staging, "tx", [f"none{number}" for number in range(5_000)])) == []
    decided = bench.store.tables.staged.decided("tx")
    assert decided is not None
    assert decided.parts == ()


def lose_power(bench: Bench) -> None:
    staged_rows.lose_power(bench.store)


def record_walked_places(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the places of all records that are read from now on."""
    walk, places = bench.store.salvage_walk, list[int]()

    def recording_walk(begin: int) -> Iterator[Record | DamagedRange]:
        for record in walk(begin):
            places.append(record.begin if isinstance(record, DamagedRange) else record.physical_offset)
            yield record

    monkeypatch.setattr(bench.store, "salvage_walk", recording_walk)
    return places


@pytest.mark.parametrize("through", [0, 1, 17, 39, 40])
def test_commit_after_power_loss_walks_log_once(bench: Bench, monkeypatch: pytest.MonkeyPatch, through: int) -> None:
    """Use equal rows in different chunks, with equal messages of others between them."""
    rows = [[row(b"%d" % ((number + each) % 7)) for each in range(5)] for number in range(40)]
    for number, each in enumerate(rows):
        stage(bench, f"part{number // 2}", each, number % 2)
    parts = [f"part{number}" for number in range(20)]
    other = row(b"of another one")
    for number, _ in enumerate(staged_rows.commit(bench.core.staging, "tx", parts, 200), 1):
        bench.core.append("t", 0, memoryview(other), np.array([len(other)], np.int32))
        if number >= through:
            break
    there = bench.store.max_offset("t", 0, written=True)
    lose_power(bench)
    places = record_walked_places(bench, monkeypatch)
    assert sum(staged_rows.commit(bench.core.staging, "tx", parts, 200)) == 200 - 5 * max(through, 1)
    assert len(places) <= there
    staged_rows.close(bench.core.staging, "tx")
    expected = Counter(record[-1:] for each in rows for record in each)
    assert sum(expected.values()) == 200
    bodies = Counter(bench.bodies("t"))
    del bodies[b"of another one"]
    assert bodies == Counter(b"%d" % ((number + each) % 7) for number in range(40) for each in range(5))


def test_row_missing_in_log_causes_no_second_walk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        stage(bench, f"part{number}", [row(b"%d %d" % (number, each)) for each in range(5)])
    parts = [f"part{number}" for number in range(10)]
    for _ in range(2):
        for _ in staged_rows.commit(bench.core.staging, "tx", parts):
            pass
        lose_power(bench)
    staged_rows.overwrite(bench.store, "tx", "part0", 0, b"0 3", b"0 8")  # as if this row were missing in the log
    places = record_walked_places(bench, monkeypatch)
    sum(staged_rows.commit(bench.core.staging, "tx", parts))
    assert len(places) <= 50


def test_each_log_search_step_reads_few_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        stage(bench, f"part{number}", [row(b"%d %d" % (number, each)) for each in range(1_000)])
    parts = [f"part{number}" for number in range(3)]
    for _ in staged_rows.commit(bench.core.staging, "tx", parts):
        pass
    lose_power(bench)
    places = record_walked_places(bench, monkeypatch)
    seen = 0
    for added in staged_rows.commit(bench.core.staging, "tx", parts):
        assert added == 0
        assert len(places) - seen <= 128
        seen = len(places)
    assert 3_000 <= seen <= 3_200


@pytest.mark.parametrize("is_repeated", [False, True], ids=["at once", "after a loss of power"])
def test_commit_memory_does_not_grow_with_rows(tmp_path: Path, *, is_repeated: bool) -> None:
    """Allow the memory of one chunk, here 110 KB, and of some buffered queue entries."""
    config = replace(CONFIG, commitlog_file_bytes=1 << 24, consume_queue_file_entries=100_000, index_entries=100_000)
    bench = Bench(tmp_path, config)
    bench.core.topics.create("t", 1)

    def peak(chunks: int) -> int:
        transaction = f"tx{chunks}"
        for number in range(chunks):
            stage(
                bench, "p", [row(b"%d %d " % (number, each) + b"." * 1_000) for each in range(100)], number, transaction
            )
        if is_repeated:
            for _ in staged_rows.commit(bench.core.staging, transaction, ["p"]):
                pass
            lose_power(bench)
        tracemalloc.start()
        try:
            for _ in staged_rows.commit(bench.core.staging, transaction, ["p"]):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            staged_rows.close(bench.core.staging, transaction)

    peak(2)
    few, many = peak(4), peak(60)
    assert many - few < 1_000_000  # the rows of the larger write are 6 MB
    bench.store.close()
