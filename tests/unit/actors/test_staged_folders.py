"""Test the conversion of staged rows of format 2 over kills and power losses."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from raymq.actors.broker.core.appending import staged_folders
from raymq.storage import failpoints
from raymq.storage.errors import InvalidInput, StoreBusy
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE
from raymq.storage.files.file_calls import replaced
from raymq.storage.records.record import encode
from raymq.storage.staged_topic import STAGED_TOPIC
from tests import staged_rows
from tests.faulty_calls import FaultyCalls
from tests.former_staged_rows import done_mark, move_to_folders
from tests.unit.actors.bench import Bench

CHUNKS, ROWS = 4, 5
BODIES = [b"%d %d" % (number, each) for number in range(CHUNKS) for each in range(ROWS)]
POINTS = [
    *(f"staged_folders.{step}" for step in ("before_rename", "after_rename", "before_places", "before_removal")),
    *(f"state.after_write:{nth}" for nth in (1, 2, 5, 9, 10, 12)),
]


class Died(BaseException):
    """A simulated kill."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "broker")
    made.core.topics.create("t", 1)
    yield made
    failpoints.arm("")
    made.store.close()


def row(body: bytes) -> bytes:
    return encode("t", 0, body, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))


def stage(bench: Bench, transaction: str = "tx") -> None:
    for number in range(CHUNKS):
        rows = [row(body) for body in BODIES[ROWS * number : ROWS * (number + 1)]]
        sizes = np.array([*map(len, rows)], np.int32)
        records = memoryview(b"".join(rows))
        staged_rows.stage(bench.core.staging, transaction, "p", number, ("t", 0), records, sizes, "home")


def leave(bench: Bench) -> None:
    """Let the process die."""
    bench.store._flusher.stop()
    bench.store._abandon()


def open_killed(bench: Bench, point: str) -> None:
    """Start the broker, and kill it at a failpoint if it gets there; then start it."""

    def die() -> None:
        raise Died

    failpoints.arm(point, die)
    try:
        bench.open()
    except Died:
        leave(bench)
        failpoints.arm("")
        bench.open()
    failpoints.arm("")


def commit(bench: Bench) -> int:
    added = sum(staged_rows.commit(bench.core.staging, "tx", ["p"], CHUNKS * ROWS))
    bench.store.flush()
    staged_rows.close(bench.core.staging, "tx")
    return added


def check_converted(bench: Bench) -> None:
    assert not (bench.directory / "raymq" / "staged").exists()
    assert not (bench.directory / "raymq" / "staged_taken").exists()


@pytest.mark.parametrize("point", ["", *POINTS])
@pytest.mark.parametrize("through", [0, 1, 3])
def test_folders_killed_in_conversion_lose_no_row(bench: Bench, through: int, point: str) -> None:
    """Cover a write that is undecided, and one whose commit was interrupted."""
    stage(bench)
    steps = staged_rows.commit(bench.core.staging, "tx", ["p"], CHUNKS * ROWS)
    for _ in range(through):
        next(steps)
    move_to_folders(bench.store)
    leave(bench)
    open_killed(bench, point)
    check_converted(bench)
    assert bench.bodies("t") == []
    assert list(bench.core.staging.in_doubt.due_queries()) == ["home"]
    assert commit(bench) == (CHUNKS - through) * ROWS
    assert bench.bodies("t") == BODIES
    bench.crash()
    assert bench.bodies("t") == BODIES


@pytest.mark.parametrize("point", ["", *POINTS])
def test_done_mark_after_log_end_stays_void(bench: Bench, point: str) -> None:
    """Guard against a log that has grown over the position, by the conversion itself, when it is repeated."""
    stage(bench)
    assert next(staged_rows.commit(bench.core.staging, "tx", ["p"], CHUNKS * ROWS)) == ROWS
    root = move_to_folders(bench.store)
    for number in range(1, CHUNKS):
        (root / "tx" / f"p.{number:06d}.done").write_bytes(done_mark(bench.store.max_physical_offset + 100 * number))
    leave(bench)
    open_killed(bench, point)
    assert commit(bench) == (CHUNKS - 1) * ROWS
    assert bench.bodies("t") == BODIES


def test_ends_of_finished_transactions_are_converted(bench: Bench) -> None:
    stage(bench)
    bench.store.tables.staged.move("tx", ("p", 0), ())
    assert commit(bench) == (CHUNKS - 1) * ROWS
    stage(bench, "dropped")
    staged_rows.abort(bench.core.staging, "dropped")
    missing = bench.core.staging.table.missing("tx")
    move_to_folders(bench.store)
    bench.crash()
    check_converted(bench)
    for name in ("tx", "dropped"):
        with pytest.raises(InvalidInput, match="decided"):
            stage(bench, name)
    assert missing is not None
    assert (missing.rows, bench.core.staging.table.missing("tx")) == (ROWS, missing)
    assert bench.core.staging.in_doubt.due_notifications() == {"home": ["tx"]}


def unlink(path: Path) -> None:
    path.unlink()


def cut_header(path: Path) -> None:
    path.write_bytes(bytes(50))


def cut_records(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip_a_record(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"1 2", b"1 3"))


@pytest.mark.parametrize(
    ("damage", "missing"), [(unlink, ROWS), (cut_header, ROWS), (cut_records, ROWS), (flip_a_record, 1)]
)
@pytest.mark.parametrize("is_decided", [False, True])
def test_damaged_former_chunk_is_reported_missing(
    bench: Bench, damage: Callable[[Path], None], missing: int, *, is_decided: bool
) -> None:
    stage(bench)
    if is_decided:
        assert next(staged_rows.commit(bench.core.staging, "tx", ["p"], CHUNKS * ROWS)) == ROWS
    damage(move_to_folders(bench.store) / "tx" / "p.000001.chunk")
    bench.crash()
    check_converted(bench)
    commit(bench)
    found = bench.core.staging.table.missing("tx")
    assert found is not None
    assert (found.rows, len(bench.bodies("t"))) == (missing, CHUNKS * ROWS - missing)


def test_files_of_the_oldest_versions_are_converted(bench: Bench) -> None:
    """Their coordinator is a plain name, their decisions are shorter, and open attempts have no end."""
    stage(bench)
    assert next(staged_rows.commit(bench.core.staging, "tx", ["p"], CHUNKS * ROWS)) == ROWS
    begin = bench.store.max_physical_offset
    bench.store.tables.staged.begin_attempt("tx", ("p", 1), begin)
    decided = bench.store.tables.staged.decided("tx")
    assert decided is not None
    folder = move_to_folders(bench.store) / "tx"
    (folder / "home").write_bytes(b"home")
    ends = [[topic, queue_id, end] for (topic, queue_id), end in decided.ends.items()]
    (folder / "commit").write_bytes(msgpack.packb([["p"], ends, decided.log_from]))
    intent = folder / "p.000001.intent"
    intent.write_bytes(intent.read_bytes()[:8])
    bench.crash()
    assert bench.core.staging.table.coordinator_of("tx") == "home"
    chunk = bench.store.tables.staged.chunk("tx", ("p", 1))
    assert chunk is not None
    assert chunk.attempts == ((begin, begin),)
    assert commit(bench) == (CHUNKS - 1) * ROWS
    assert bench.bodies("t") == BODIES


@pytest.mark.parametrize("nth", range(1, 4))
def test_failed_listing_fails_the_start_without_loss(bench: Bench, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    monkeypatch.setattr(DESCRIPTOR_RESERVE, "release_one", lambda: False)
    stage(bench)
    move_to_folders(bench.store)
    convert = staged_folders.convert

    def failing(*arguments: object) -> None:
        with replaced(FaultyCalls("scan", nth, errno.EMFILE)):
            convert(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(staged_folders, "convert", failing)
        leave(bench)
        with pytest.raises(StoreBusy):
            bench.open()
    leave(bench)
    bench.open()
    assert commit(bench) == CHUNKS * ROWS
    assert bench.bodies("t") == BODIES


def test_conversion_uses_the_log_on_a_disk_above_its_limit(bench: Bench) -> None:
    stage(bench)
    move_to_folders(bench.store)
    leave(bench)
    bench.config = replace(bench.config, disk_refuse_ratio=0.000001)
    bench.open()
    check_converted(bench)
    assert bench.store.max_offset(STAGED_TOPIC, 0) == 2 * CHUNKS
