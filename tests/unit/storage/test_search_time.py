"""Test that an offset by time is found in bounded steps despite damaged records."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from raymq.storage.cooperative_steps import Steps, run_steps
from raymq.storage.errors import QueueNotFound
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.store import Store
from tests.store_records import SMALL, append, make_record

COUNT = 3_000
CONFIG = replace(SMALL, commitlog_file_bytes=1 << 20, consume_queue_file_entries=1_000)
#: The number of records that one step may read.
MOST = 300


def open_damaged_store(directory: Path) -> Store:
    """Open a store with a message each second; those in the middle are zeros."""
    seconds = count(1)
    store = Store.open(directory, CONFIG, now_ms=lambda: next(seconds) * 1_000)
    for number in range(COUNT):
        append(store, make_record(b"%d" % number))
    places, _, _ = store.entries("orders", 0, 0, COUNT)
    paths = sorted((directory / "commitlog").iterdir())
    for place in places[500:2_900].tolist():
        with paths[place // CONFIG.commitlog_file_bytes].open("r+b", buffering=0) as file:
            file.seek(place % CONFIG.commitlog_file_bytes + 4)
            file.write(bytes(4))
    return store


def times(store: Store) -> tuple[int, int]:
    """Return the store times of the messages before and behind the damaged ones."""
    with store.read("orders", 0, 499, 1) as before, store.read("orders", 0, 2_900, 1) as behind:
        return before.messages()[0].store_timestamp_ms, behind.messages()[0].store_timestamp_ms


def test_search_step_reads_few_records_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = [0]
    has_record_header = CommitLog.has_record_header

    def counting(log: CommitLog, place: int) -> bool:
        looked[-1] += 1
        return has_record_header(log, place)

    with open_damaged_store(tmp_path) as store:
        before_ms, behind_ms = times(store)
        monkeypatch.setattr(CommitLog, "has_record_header", counting)
        for at_ms, lower in ((before_ms, 499), (before_ms + 1, 500), (behind_ms, 500), (behind_ms + 1, 2_901)):
            steps, looked[:] = store.search_time("orders", 0, at_ms), [0]
            assert run_counted_steps(steps, looked) == lower == store.offset_at_time("orders", 0, at_ms)
            assert max(looked[:-1], default=0) <= MOST
        steps, looked[:] = store.search_time("orders", 0, before_ms + 1), [0]
        run_counted_steps(steps, looked)
        assert len(looked) > 3, "there was more than one step"


def run_counted_steps(steps: Steps[int], looked: list[int]) -> int:
    """Return the steps' result, with a new count for each step."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: int = end.value
            looked.append(0)
            return result
        looked.append(0)


@pytest.mark.parametrize("made_again", [False, True])
def test_queue_deleted_between_steps_raises_queue_not_found(tmp_path: Path, *, made_again: bool) -> None:
    with open_damaged_store(tmp_path) as store:
        steps = store.search_time("orders", 0, 1 << 40)
        next(steps)
        store.delete_topic("orders")
        if made_again:
            append(store, make_record(b"another"))
        with pytest.raises(QueueNotFound):
            run_steps(steps)
