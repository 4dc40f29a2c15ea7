"""Test how a staged commit counts, reports and records the rows that a broker lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.core.writes.transaction_coordinator import TransactionCoordinator
from raymq.actors.broker.staged_commits import CommitResult, InDoubtResolver, PeerClient, StagedCommits
from raymq.actors.wire.commands import staged_write_commands as wire
from raymq.actors.wire.frame import Command
from raymq.storage.records.record import OFFSET_MAGIC, encode
from raymq.storage.tables.write_transactions import WriteTransactionStore
from tests import staged_rows
from tests.state_journals import open_table
from tests.unit.actors.bench import Bench


def make_bench(directory: Path, chunks: int = 3, rows: int = 5) -> Bench:
    bench = Bench(directory)
    bench.core.topics.create("t", 1)
    for number in range(chunks):
        stage(bench, number, [encode_row(b"%d %d" % (number, each)) for each in range(rows)])
    return bench


def encode_row(body: bytes) -> bytes:
    return encode("t", 0, body, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))


def stage(bench: Bench, number: int, rows: list[bytes]) -> None:
    sizes = np.array([len(each) for each in rows], np.int32)
    staged_rows.stage(bench.core.staging, "write", "p", number, ("t", 0), memoryview(b"".join(rows)), sizes, "home")


def commit(bench: Bench, rows: int) -> CommitResult:
    return asyncio.run(StagedCommits(bench.core, LocalAcks(bench.core.store)).commit("write", {"p": rows}))


def lose(bench: Bench, number: int) -> None:
    bench.store.tables.staged.move("write", ("p", number), ())


def cut_header(bench: Bench, number: int) -> None:
    staged_rows.cut_header(bench.store, "write", "p", number)


def misfit_records(bench: Bench, number: int) -> None:
    """Raise the size of the first row in the header."""
    body = staged_rows.body_of(bench.store, "write", "p", number)
    row = len(encode_row(b"0 0")).to_bytes(4, "little")
    body[bytes(body).index(row)] += 1


def break_record(bench: Bench, number: int) -> None:
    chunk = bench.store.tables.staged.chunk("write", ("p", number))
    assert chunk is not None
    offset = chunk.places[0][0]
    file = bench.store._log.files.file_at(offset)
    file.view[offset - file.start + OFFSET_MAGIC] ^= 1


def swap_records(bench: Bench, number: int) -> None:
    """Put the places of another chunk's records in place of a chunk's."""
    other = bench.store.tables.staged.chunk("write", ("p", number + 1))
    assert other is not None
    bench.store.tables.staged.move("write", ("p", number), other.places)


def flip_a_record(bench: Bench, number: int) -> None:
    staged_rows.overwrite(bench.store, "write", "p", number, b"%d 2" % number, b"%d 3" % number)


@pytest.mark.parametrize(
    ("damage", "missing", "reason"),
    [
        (lose, 5, "not in the log any more"),
        (cut_header, 5, "not a staged chunk"),
        (misfit_records, 5, "do not fit"),
        (break_record, 5, "magic"),
        (swap_records, 5, "another record"),
        (flip_a_record, 1, "CRC"),
    ],
)
def test_repeated_commit_reports_same_missing_rows(
    tmp_path: Path, damage: Callable[[Bench, int], None], missing: int, reason: str
) -> None:
    bench = make_bench(tmp_path)
    damage(bench, 1)
    done = commit(bench, 15)
    assert done.added == len(bench.bodies("t")) == 15 - missing
    assert done.missing is not None
    assert done.missing.rows == missing
    assert reason.lower() in done.missing.reason.lower()
    assert commit(bench, 15) == (0, done.missing)
    bench.crash()
    assert commit(bench, 15) == (0, done.missing)


def test_undamaged_commit_has_no_missing_rows(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    assert commit(bench, 15) == (15, None)
    assert commit(bench, 15) == (0, None)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_rows_lost_around_crash_are_counted_once(tmp_path: Path, done: int) -> None:
    """Lose chunks before a crash, and damage one more while the broker is down."""
    bench = make_bench(tmp_path, chunks=4)
    lose(bench, 0)
    misfit_records(bench, 1)
    steps = staged_rows.commit(bench.core.staging, "write", {"p": 20}, 20)
    for _ in range(done):
        next(steps)
    bench.crash()
    cut_header(bench, 3)
    reported = commit(bench, 20)
    assert reported.missing is not None
    assert (reported.missing.rows, len(bench.bodies("t"))) == (15, 5)


def test_killed_commit_reports_damaged_row_once(
    tmp_path: Path,
) -> None:
    """Read a chunk that lost rows again: it has no completion mark."""
    bench = make_bench(tmp_path)
    flip_a_record(bench, 1)
    steps = staged_rows.commit(bench.core.staging, "write", {"p": 15}, 15)
    assert [next(steps) for _ in range(2)] == [5, 4]
    bench.crash()
    done = commit(bench, 15)
    assert (done.added, len(bench.bodies("t"))) == (5, 14)
    assert done.missing is not None
    assert done.missing.rows == 1
    assert len(bench.core.set_aside.notes()) == 1


def test_rows_of_deleted_topic_are_missing(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.core.topics.delete("t")
    done = commit(bench, 15)
    assert done.missing == (15, "topic t was deleted")


def test_commit_without_staged_rows_records_nothing(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, chunks=0)
    for _ in range(2):
        assert commit(bench, 15) == (0, (15, "no row of the write is on this broker"))
    assert commit(bench, 0) == (0, None)
    assert bench.store.tables.staged.transactions() == []


def test_coordinator_records_missing_rows(tmp_path: Path) -> None:
    bench = make_bench(tmp_path / "broker-a")
    misfit_records(bench, 1)
    commit(bench, 15)
    coordinator = TransactionCoordinator(open_table(tmp_path / "home", WriteTransactionStore()), bench.clock)
    coordinator.open("write", "t")
    coordinator.commit("write", {"broker-a": {"p": 15}, "b": {"q": 1}})
    reported: list[Command] = []

    class Peers(PeerClient):
        def __init__(self) -> None: ...

        async def ask(self, broker: str, command: Command, seconds: float) -> Command:
            reported.append(command)
            return command

    commits = StagedCommits(bench.core, LocalAcks(bench.core.store))
    asyncio.run(InDoubtResolver(bench.core, commits, Peers()).turn())
    [done] = [command for command in reported if command.fields.get("transactions")]
    [[name, rows, reason]] = done.fields["missing"]
    assert (name, rows) == ("write", 5)
    coordinator.mark_finished(name, "broker-a", (rows, reason))
    coordinator.mark_finished("write", "b")
    for each in (
        coordinator,
        TransactionCoordinator(open_table(tmp_path / "home", WriteTransactionStore()), bench.clock),
    ):
        record = each.transaction_status("write").record
        assert record is not None
        assert record.missing == {"broker-a": (5, reason)}
        assert record.unfinished == []


def test_malformed_missing_rows_answer_is_refused() -> None:
    from raymq.actors.errors import ProtocolError

    good = Command(0, {"missing": 3, "reason": "why", "added": 0})
    assert wire.read_commit_answer(good) == (3, "why")
    for fields in ({}, {"missing": -1, "reason": "x"}, {"missing": 1, "reason": 7}):
        with pytest.raises(ProtocolError):
            wire.read_commit_answer(Command(0, fields))
