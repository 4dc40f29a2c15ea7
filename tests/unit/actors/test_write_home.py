"""The home of staged writes: the first decision stands, over restarts, and nothing is promised twice."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from raymq.actors.broker.core.writes.transaction_coordinator import (
    RESULT_RETENTION_SECONDS,
    SERIES_RETENTION_SECONDS,
    TRANSACTION_TIMEOUT_SECONDS,
    TransactionCoordinator,
)
from raymq.actors.errors import InvalidInput, ServerBusy, StoreCorrupt
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.tables.write_transactions import WriteState, WriteTransactionStore
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.clock import FakeClock

PARTS = {"a": {"p": 2, "q": 1}, "b": {"p": 4}}
OPEN, COMMITTED, ABORTED = WriteState.OPEN, WriteState.COMMITTED, WriteState.ABORTED


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.start()

    def start(self) -> None:
        self.home = TransactionCoordinator(WriteTransactionStore(self.directory), self.clock)

    def decision(self, transaction: str) -> WriteState | None:
        return self.home.transaction_status(transaction).decision


@pytest.fixture(params=[False, True], ids=["living", "restarted"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """One of which every question is asked of a new life, too."""
    made = Bench(tmp_path)
    if request.param:
        for name in ("open", "commit", "abort", "transaction_status", "query_status", "mark_finished", "sweep"):

            def anew(*arguments: object, name: str = name) -> object:
                made.start()
                return getattr(made.home, name)(*arguments)

            setattr(made, name, anew)
    else:
        for name in ("open", "commit", "abort", "transaction_status", "query_status", "mark_finished", "sweep"):
            setattr(made, name, getattr(made.home, name))
    return made


@pytest.mark.parametrize(
    ("wishes", "stands"),
    [
        (["commit", "commit", "abort", "open", "transaction_status"], COMMITTED),
        (["abort", "commit", "abort", "open", "transaction_status"], ABORTED),
        (["transaction_status", "open", "query_status"], OPEN),
    ],
)
def test_the_first_decision_stands(bench: Bench, wishes: list[str], stands: WriteState) -> None:
    bench.open("tx", "t")
    for wish in wishes:
        more = {"commit": (PARTS,), "open": ("t",), "query_status": (1.0,)}.get(wish, ())
        assert getattr(bench, wish)("tx", *more).decision is stands
    record = bench.transaction_status("tx").record
    assert record.rows == (7 if stands is COMMITTED else 0)


def test_other_parts_than_those_of_the_first_commit_count_for_nothing(bench: Bench) -> None:
    bench.open("tx", "t")
    bench.commit("tx", PARTS)
    assert bench.commit("tx", {"c": {"x": 9}}).record.parts == PARTS


def test_what_was_never_opened_cannot_be_committed(bench: Bench) -> None:
    assert bench.commit("tx", PARTS).decision is None
    assert bench.abort("tx").decision is None
    assert bench.query_status("tx", 0.0).decision is None


def test_a_commit_is_kept_until_all_have_finished_and_for_days(bench: Bench) -> None:
    bench.open("tx", "t")
    bench.commit("tx", PARTS)
    bench.mark_finished("tx", "a")
    bench.mark_finished("tx", "nobody")
    bench.clock.advance(100 * RESULT_RETENTION_SECONDS)
    bench.sweep()
    assert bench.transaction_status("tx").record.unfinished == ["b"]
    bench.mark_finished("tx", "b")
    bench.sweep()
    assert bench.transaction_status("tx").decision is None
    assert list((bench.directory / "raymq" / "writes").iterdir()) == []


def test_an_open_write_is_aborted_a_day_after_it_was_touched_last(bench: Bench) -> None:
    bench.open("tx", "t")
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    assert bench.home.sweep() == []
    bench.home.query_status("tx", 10.0)  # somebody has had rows for it 10 s ago
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 11)
    assert bench.home.sweep() == []
    bench.clock.advance(1)
    assert bench.home.sweep() == ["tx"]
    assert bench.commit("tx", PARTS).decision is ABORTED


def test_that_a_write_goes_on_is_known_after_a_restart(tmp_path: Path) -> None:
    """Its last touch was known to the process only: a write of 25 hours was aborted at a restart."""
    bench = Bench(tmp_path)
    bench.home.open("tx", "t")
    for _ in range(25 * 6):
        bench.clock.advance(600)
        bench.home.query_status("tx", 0.0)
    bench.start()
    assert bench.home.sweep() == []
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    bench.start()
    assert bench.home.sweep() == []


def test_a_restart_does_not_begin_the_wait_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.home.open("tx", "t")
    bench.home.query_status("tx", 0.0)
    hours, aborted = 0, []
    while not aborted:
        bench.clock.advance(3_600)
        bench.start()
        aborted = bench.home.sweep()
        hours += 1
    assert 24 <= hours <= 25


def test_that_a_write_goes_on_is_written_down_now_and_then_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.home.open("tx", "t")
    written = []
    put = bench.home._records.put
    bench.home._records.put = lambda record: (written.append(record), put(record))
    for _ in range(3_600):
        bench.clock.advance(5)
        bench.home.query_status("tx", 0.0)
    assert 4 <= len(written) <= 5
    bench.home._records.put = put


def test_a_disk_that_does_not_take_it_keeps_no_write_from_going_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.home.open("tx", "t")
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    with replaced(FaultyCalls("open", 1, errno.ENOSPC)):
        assert bench.home.query_status("tx", 0.0).decision is OPEN
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    assert bench.home.sweep() == []


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_was_written_by_a_clock_that_is_lost_is_as_if_it_were_of_now(
    tmp_path: Path, *, is_committed: bool
) -> None:
    bench = Bench(tmp_path)
    bench.clock.advance(1e6)
    bench.home.open("tx", "t")
    if is_committed:
        bench.home.commit("tx", {"a": {"p": 1}})
        bench.home.mark_finished("tx", "a")
    bench.clock.now = 0.0
    wait = RESULT_RETENTION_SECONDS if is_committed else TRANSACTION_TIMEOUT_SECONDS
    for _ in range(10):
        bench.start()
        assert bench.home.sweep() == []
        assert bench.home.transaction_status("tx").record is not None
        bench.clock.advance(wait / 10)
    bench.start()
    bench.clock.advance(3_600)  # that it was touched lately may be unknown
    bench.home.sweep()
    assert bench.decision("tx") is (None if is_committed else ABORTED)


def test_of_a_series_each_number_is_committed_once(bench: Bench) -> None:
    for transaction in ("a1", "b1"):  # the driver died, and another one writes the batch again
        assert bench.open(transaction, "t", "q/t", 1).decision is OPEN
    assert bench.commit("b1", PARTS).decision is COMMITTED
    late = bench.commit("a1", {"a": {"x": 1}})
    assert (late.decision, late.instead.transaction, late.instead.rows) == (ABORTED, "b1", 7)
    for number in (0, 1):
        known = bench.open("c", "t", "q/t", number)
        assert (known.decision, known.instead.transaction, known.instead.number) == (None, "b1", 1)
    assert bench.open("d", "t", "q/t", 2).decision is OPEN
    assert bench.open("e", "t", "another", 1).decision is OPEN


def test_an_attempt_whose_number_was_committed_by_another_one_is_dropped_when_it_is_asked_about(bench: Bench) -> None:
    bench.open("a1", "t", "q/t", 1)
    bench.open("b1", "t", "q/t", 1)
    bench.commit("b1", PARTS)
    assert bench.query_status("a1", 6.0).decision is ABORTED


def test_what_is_kept_of_a_series_does_not_grow(bench: Bench) -> None:
    for number in range(50):
        bench.open(f"tx{number}", "t", "q/t", number)
        bench.commit(f"tx{number}", {"a": {"p": 1}})
        bench.mark_finished(f"tx{number}", "a")
        bench.clock.advance(SERIES_RETENTION_SECONDS / 2)
        bench.sweep()
    assert len(list((bench.directory / "raymq" / "writes").iterdir())) <= 3
    bench.clock.advance(100 * RESULT_RETENTION_SECONDS)
    bench.sweep()
    assert bench.open("again", "t", "q/t", 49).instead.transaction == "tx49"


def test_a_commit_whose_series_was_not_told_any_more_counts_all_the_same(tmp_path: Path) -> None:
    """The death between the two files: the write's own is the commit."""
    bench = Bench(tmp_path)
    bench.home.open("tx", "t", "q/t", 3)
    bench.home.commit("tx", PARTS)
    for path in (tmp_path / "raymq" / "series").iterdir():
        path.unlink()
    bench.start()
    assert bench.home.open("again", "t", "q/t", 3).instead.transaction == "tx"


def test_what_cannot_be_read_is_told_and_neither_decided_nor_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.home.open("tx", "t")
    bench.home.open("sound", "t")
    (tmp_path / "raymq" / "writes" / "tx").write_bytes(b"\xc1")
    bench.start()
    for ask in (
        lambda: bench.home.transaction_status("tx"),
        lambda: bench.home.commit("tx", PARTS),
        lambda: bench.home.query_status("tx", 1),
    ):
        with pytest.raises(StoreCorrupt):
            ask()
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS)
    assert bench.home.sweep() == ["sound"]
    assert (tmp_path / "raymq" / "writes" / "tx").exists()


def test_names_and_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    home = Bench(tmp_path).home
    for name in ("", "../x", "x" * 65):
        with pytest.raises(InvalidInput):
            home.open(name, "t")
    for topic in ("", "a b", "t" * 1_000_000):  # each is kept in memory
        with pytest.raises(InvalidInput):
            home.open("tx", topic)
    with pytest.raises(InvalidInput):
        home.open("tx", "t", "s" * 513, 1)
    with pytest.raises(InvalidInput):
        home.open("tx", "t", "s", -1)


def test_so_many_writes_are_known_at_most(tmp_path: Path) -> None:
    home = TransactionCoordinator(WriteTransactionStore(tmp_path), FakeClock(), most=2)
    home.open("a", "t")
    home.open("b", "t")
    with pytest.raises(ServerBusy):
        home.open("c", "t")
    assert home.open("a", "t").decision is OPEN


class NoRoomForSeries(FileCalls):
    """A disk that takes no file of a series."""

    def __init__(self, error: int) -> None:
        self._error = error

    def open(self, path: Path, flags: int) -> int:
        if path.parent.name == "series" and flags & os.O_CREAT:
            raise OSError(self._error, os.strerror(self._error), str(path))
        return super().open(path, flags)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_batch_is_not_committed_twice_where_the_disk_does_not_take_its_series(
    tmp_path: Path, error: int, restarted: bool
) -> None:
    """The write was committed, its driver was told that it was not, and the batch was committed by another one."""
    bench = Bench(tmp_path)
    bench.home.open("first", "t", "q/t", 1)
    with replaced(NoRoomForSeries(error)):
        assert bench.home.commit("first", PARTS).decision is COMMITTED
        if restarted:
            bench = Bench(tmp_path)
        again = bench.home.open("second", "t", "q/t", 1)
        assert again.instead is not None
        assert again.instead.transaction == "first"
        assert bench.home.query_status("first", 0.0).decision is COMMITTED
    bench.home.sweep()
    again = Bench(tmp_path).home.open("third", "t", "q/t", 1)
    assert again.instead is not None
    assert WriteTransactionStore(tmp_path).end("q/t") == again.instead


@pytest.mark.parametrize("seed", range(20))
def test_what_was_answered_outlives_a_loss_of_power(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    disk = Disk(before)
    with replaced(disk):
        bench = Bench(before)
        answered: dict[str, WriteState | None] = {}
        for number in range(6):
            name = f"tx{number}"
            answered[name] = bench.home.open(name, "t", "q/t" if number % 2 else "", number).decision
            if random_.random() < 0.7:
                answered[name] = bench.home.commit(name, PARTS).decision
            elif random_.random() < 0.5:
                answered[name] = bench.home.abort(name).decision
            if random_.random() < 0.5:
                bench.home.mark_finished(name, "a")
        disk.after_power_loss(after, random_, random_.random())
    disk.close()
    again = Bench(after)
    assert {name: again.decision(name) for name in answered} == answered
    ends = [number for number in (1, 3, 5) if answered[f"tx{number}"] is COMMITTED]
    known = again.home.open("again", "t", "q/t", 0)
    assert (known.instead.number if known.instead else None) == (max(ends) if ends else None)


@pytest.mark.parametrize("topic", ["", "x" * 128, "a/b", "t\n"])
def test_a_write_of_what_no_topic_is_called_is_not_opened(tmp_path: Path, topic: str) -> None:
    """Its record would be kept, however long the name is."""
    bench = Bench(tmp_path)
    with pytest.raises(InvalidInput):
        bench.home.open("write", topic)
    assert bench.decision("write") is None
    assert list(tmp_path.rglob("write*")) == []
