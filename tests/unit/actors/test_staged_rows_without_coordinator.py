"""Test that staged rows are dropped when their coordinator is unknown, and kept when it is only away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.core.writes.transaction_coordinator import TRANSACTION_TIMEOUT_SECONDS
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.storage.records.record import encode
from tests import staged_rows
from tests.staged_rows import open_transactions
from tests.unit.actors.bench import Bench


def stage(bench: Bench, transaction: str, coordinator: str) -> None:
    row = encode("t", 0, b"row", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    staged_rows.stage(
        bench.core.staging, transaction, "p", 0, ("t", 0), memoryview(row), np.array([len(row)], np.int32), coordinator
    )


def staged_transactions(bench: Bench) -> set[str]:
    return open_transactions(bench.store)


def sweep(bench: Bench) -> None:
    asyncio.run(StagedCommits(bench.core, LocalAcks(bench.core.store)).sweep())


@pytest.mark.parametrize("restarted", [False, True])
def test_abandoned_rows_of_unknown_coordinator_are_dropped(tmp_path: Path, *, restarted: bool) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    bench.core.coordinators.merge((), ["away", "gone"])
    for coordinator in ("ghost", "away", "gone", bench.core.name):
        stage(bench, f"of-{coordinator}", coordinator)
    bench.core.coordinators.forget("gone")
    every = {"of-ghost", "of-away", "of-gone", f"of-{bench.core.name}"}
    if restarted:
        bench.crash()
    sweep(bench)
    bench.elapsed.now += TRANSACTION_TIMEOUT_SECONDS - 10
    sweep(bench)
    assert staged_transactions(bench) == every
    bench.elapsed.now += 20
    sweep(bench)
    assert staged_transactions(bench) == every - {"of-ghost", "of-gone"}
    with pytest.raises(InvalidInput):  # the transaction was dropped
        stage(bench, "of-ghost", "ghost")


def test_begun_commit_finishes_without_its_coordinator(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    stage(bench, "begun", "ghost")
    steps = staged_rows.commit(bench.core.staging, "begun", {"p": 1}, 1)
    next(steps)
    sweep(bench)
    bench.elapsed.now += 2 * TRANSACTION_TIMEOUT_SECONDS
    sweep(bench)
    assert list(steps) == []
    staged_rows.close(bench.core.staging, "begun")
    assert bench.bodies("t") == [b"row"]


def test_only_known_brokers_are_coordinators(tmp_path: Path) -> None:
    directory = Bench(tmp_path).core.coordinators
    directory.check_known("broker-a")
    with pytest.raises(BrokerUnavailable, match="ghost"):
        directory.check_known("ghost")
    directory.merge((), ["ghost"])
    directory.check_known("ghost")
    for name in ("", "a/b", "x" * 200):
        with pytest.raises(InvalidInput):
            directory.check_known(name)
