"""Test the transaction coordinator: the first decision stands, across restarts and crashes."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from raymq.actors.broker.core.writes.transaction_coordinator import (
    RESULT_RETENTION_SECONDS,
    SERIES_RETENTION_SECONDS,
    TRANSACTION_TIMEOUT_SECONDS,
    TransactionCoordinator,
)
from raymq.actors.errors import InvalidInput, ServerBusy
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.write_transactions import WriteState, WriteTransactionStore
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls
from tests.state_journals import open_table
from tests.unit.actors.clock import FakeClock

PARTS = {"a": {"p": 2, "q": 1}, "b": {"p": 4}}
OPEN, COMMITTED, ABORTED = WriteState.OPEN, WriteState.COMMITTED, WriteState.ABORTED


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.start()

    def start(self) -> None:
        self.coordinator = TransactionCoordinator(open_table(self.directory, WriteTransactionStore()), self.clock)

    def decision(self, transaction: str) -> WriteState | None:
        return self.coordinator.transaction_status(transaction).decision


@pytest.fixture(params=[False, True], ids=["living", "restarted"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Run each test also with a restart before every call."""
    made = Bench(tmp_path)
    if request.param:
        for name in ("open", "commit", "abort", "transaction_status", "query_status", "mark_finished", "sweep"):

            def restart_and_call(*arguments: object, name: str = name) -> object:
                made.start()
                return getattr(made.coordinator, name)(*arguments)

            setattr(made, name, restart_and_call)
    else:
        for name in ("open", "commit", "abort", "transaction_status", "query_status", "mark_finished", "sweep"):
            setattr(made, name, getattr(made.coordinator, name))
    return made


@pytest.mark.parametrize(
    ("wishes", "stands"),
    [
        (["commit", "commit", "abort", "open", "transaction_status"], COMMITTED),
        (["abort", "commit", "abort", "open", "transaction_status"], ABORTED),
        (["transaction_status", "open", "query_status"], OPEN),
    ],
)
def test_first_decision_stands(bench: Bench, wishes: list[str], stands: WriteState) -> None:
    bench.open("tx", "t")
    for operation in wishes:
        more = {"commit": (PARTS,), "open": ("t",), "query_status": (1.0,)}.get(operation, ())
        assert getattr(bench, operation)("tx", *more).decision is stands
    record = bench.transaction_status("tx").record
    assert record.rows == (7 if stands is COMMITTED else 0)


def test_parts_of_later_commits_are_ignored(bench: Bench) -> None:
    bench.open("tx", "t")
    bench.commit("tx", PARTS)
    assert bench.commit("tx", {"c": {"x": 9}}).record.parts == PARTS


def test_unknown_transaction_cannot_be_committed(bench: Bench) -> None:
    assert bench.commit("tx", PARTS).decision is None
    assert bench.abort("tx").decision is None
    assert bench.query_status("tx", 0.0).decision is None


def test_commit_is_kept_until_all_brokers_have_finished(bench: Bench) -> None:
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
    assert open_table(bench.directory, WriteTransactionStore()).transactions() == []


def test_open_transaction_is_aborted_a_day_after_last_touch(bench: Bench) -> None:
    bench.open("tx", "t")
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    assert bench.coordinator.sweep() == []
    bench.coordinator.query_status("tx", 10.0)  # a broker staged rows 10 s ago
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 11)
    assert bench.coordinator.sweep() == []
    bench.clock.advance(1)
    assert bench.coordinator.sweep() == ["tx"]
    assert bench.commit("tx", PARTS).decision is ABORTED


def test_activity_of_transaction_survives_restart(tmp_path: Path) -> None:
    """Guard against aborting a write of 25 hours at a restart."""
    bench = Bench(tmp_path)
    bench.coordinator.open("tx", "t")
    for _ in range(25 * 6):
        bench.clock.advance(600)
        bench.coordinator.query_status("tx", 0.0)
    bench.start()
    assert bench.coordinator.sweep() == []
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    bench.start()
    assert bench.coordinator.sweep() == []


def test_restart_does_not_reset_transaction_timeout(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.coordinator.open("tx", "t")
    bench.coordinator.query_status("tx", 0.0)
    hours, aborted = 0, []
    while not aborted:
        bench.clock.advance(3_600)
        bench.start()
        aborted = bench.coordinator.sweep()
        hours += 1
    assert 24 <= hours <= 25


def test_activity_of_transaction_is_persisted_rarely(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.coordinator.open("tx", "t")
    written = []
    put = bench.coordinator._records.put
    bench.coordinator._records.put = lambda record: (written.append(record), put(record))
    for _ in range(3_600):
        bench.clock.advance(5)
        bench.coordinator.query_status("tx", 0.0)
    assert 4 <= len(written) <= 5
    bench.coordinator._records.put = put


def test_full_disk_does_not_abort_active_transaction(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.coordinator.open("tx", "t")
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)):
        assert bench.coordinator.query_status("tx", 0.0).decision is OPEN
    bench.clock.advance(TRANSACTION_TIMEOUT_SECONDS - 1)
    assert bench.coordinator.sweep() == []


@pytest.mark.parametrize("is_committed", [False, True])
def test_timestamps_from_future_count_as_now(tmp_path: Path, *, is_committed: bool) -> None:
    bench = Bench(tmp_path)
    bench.clock.advance(1e6)
    bench.coordinator.open("tx", "t")
    if is_committed:
        bench.coordinator.commit("tx", {"a": {"p": 1}})
        bench.coordinator.mark_finished("tx", "a")
    bench.clock.now = 0.0
    wait = RESULT_RETENTION_SECONDS if is_committed else TRANSACTION_TIMEOUT_SECONDS
    for _ in range(10):
        bench.start()
        assert bench.coordinator.sweep() == []
        assert bench.coordinator.transaction_status("tx").record is not None
        bench.clock.advance(wait / 10)
    bench.start()
    bench.clock.advance(3_600)  # the last touch may be unknown
    bench.coordinator.sweep()
    assert bench.decision("tx") is (None if is_committed else ABORTED)


def test_each_number_of_series_is_committed_once(bench: Bench) -> None:
    for transaction in ("a1", "b1"):  # after a crash a new driver writes the batch again
        assert bench.open(transaction, "t", "q/t", 1).decision is OPEN
    assert bench.commit("b1", PARTS).decision is COMMITTED
    late = bench.commit("a1", {"a": {"x": 1}})
    assert (late.decision, late.instead.transaction, late.instead.rows) == (ABORTED, "b1", 7)
    for number in (0, 1):
        known = bench.open("c", "t", "q/t", number)
        assert (known.decision, known.instead.transaction, known.instead.number) == (None, "b1", 1)
    assert bench.open("d", "t", "q/t", 2).decision is OPEN
    assert bench.open("e", "t", "another", 1).decision is OPEN


def test_superseded_attempt_of_series_is_aborted(bench: Bench) -> None:
    bench.open("a1", "t", "q/t", 1)
    bench.open("b1", "t", "q/t", 1)
    bench.commit("b1", PARTS)
    assert bench.query_status("a1", 6.0).decision is ABORTED


def test_records_of_series_are_bounded(bench: Bench) -> None:
    for number in range(50):
        bench.open(f"tx{number}", "t", "q/t", number)
        bench.commit(f"tx{number}", {"a": {"p": 1}})
        bench.mark_finished(f"tx{number}", "a")
        bench.clock.advance(SERIES_RETENTION_SECONDS / 2)
        bench.sweep()
    assert len(open_table(bench.directory, WriteTransactionStore()).transactions()) <= 3
    bench.clock.advance(100 * RESULT_RETENTION_SECONDS)
    bench.sweep()
    assert bench.open("again", "t", "q/t", 49).instead.transaction == "tx49"


def test_commit_counts_without_its_series_record(tmp_path: Path) -> None:
    """Cover a kill between the two events: the write's own record is the commit."""
    bench = Bench(tmp_path)
    bench.coordinator.open("tx", "t", "q/t", 3)
    with replaced(FaultyCalls("write", 2, errno.ENOSPC, lasting=True)):
        assert bench.coordinator.commit("tx", PARTS).decision is COMMITTED
    assert open_table(tmp_path, WriteTransactionStore()).end("q/t") is None
    bench.start()
    assert bench.coordinator.open("again", "t", "q/t", 3).instead.transaction == "tx"


def test_invalid_names_and_numbers_are_refused(tmp_path: Path) -> None:
    coordinator = Bench(tmp_path).coordinator
    for name in ("", "../x", "x" * 65):
        with pytest.raises(InvalidInput):
            coordinator.open(name, "t")
    for topic in ("", "a b", "t" * 1_000_000):  # each is kept in memory
        with pytest.raises(InvalidInput):
            coordinator.open("tx", topic)
    with pytest.raises(InvalidInput):
        coordinator.open("tx", "t", "s" * 513, 1)
    with pytest.raises(InvalidInput):
        coordinator.open("tx", "t", "s", -1)


def test_number_of_transactions_is_bounded(tmp_path: Path) -> None:
    coordinator = TransactionCoordinator(open_table(tmp_path, WriteTransactionStore()), FakeClock(), most=2)
    coordinator.open("a", "t")
    coordinator.open("b", "t")
    with pytest.raises(ServerBusy):
        coordinator.open("c", "t")
    assert coordinator.open("a", "t").decision is OPEN


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_failed_series_write_does_not_commit_batch_twice(tmp_path: Path, error: int, restarted: bool) -> None:
    """Guard against a second commit of a batch after a commit that reported failure."""
    bench = Bench(tmp_path)
    bench.coordinator.open("first", "t", "q/t", 1)
    with replaced(FaultyCalls("write", 2, error, lasting=True)):
        assert bench.coordinator.commit("first", PARTS).decision is COMMITTED
        if restarted:
            bench = Bench(tmp_path)
        again = bench.coordinator.open("second", "t", "q/t", 1)
        assert again.instead is not None
        assert again.instead.transaction == "first"
        assert bench.coordinator.query_status("first", 0.0).decision is COMMITTED
    bench.coordinator.sweep()
    again = Bench(tmp_path).coordinator.open("third", "t", "q/t", 1)
    assert again.instead is not None
    assert open_table(tmp_path, WriteTransactionStore()).end("q/t") == again.instead


@pytest.mark.parametrize("seed", range(20))
def test_answered_decisions_survive_power_loss(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    disk = Disk(before)
    with replaced(disk):
        bench = Bench(before)
        answered: dict[str, WriteState | None] = {}
        for number in range(6):
            name = f"tx{number}"
            answered[name] = bench.coordinator.open(name, "t", "q/t" if number % 2 else "", number).decision
            if random_.random() < 0.7:
                answered[name] = bench.coordinator.commit(name, PARTS).decision
            elif random_.random() < 0.5:
                answered[name] = bench.coordinator.abort(name).decision
            if random_.random() < 0.5:
                bench.coordinator.mark_finished(name, "a")
        disk.after_power_loss(after, random_, random_.random())
    disk.close()
    again = Bench(after)
    assert {name: again.decision(name) for name in answered} == answered
    ends = [number for number in (1, 3, 5) if answered[f"tx{number}"] is COMMITTED]
    known = again.coordinator.open("again", "t", "q/t", 0)
    assert (known.instead.number if known.instead else None) == (max(ends) if ends else None)


@pytest.mark.parametrize("topic", ["", "x" * 128, "a/b", "t\n"])
def test_transaction_for_invalid_topic_name_is_refused(tmp_path: Path, topic: str) -> None:
    """Keep no record with a name of any length."""
    bench = Bench(tmp_path)
    with pytest.raises(InvalidInput):
        bench.coordinator.open("write", topic)
    assert bench.decision("write") is None
    assert open_table(tmp_path, WriteTransactionStore()).transactions() == []
