"""What a thread copies while another one changes it is copied by one operation, in which nobody else has a turn.

Fault of a broker with 80,000 queues: `list(table.items())` makes a tuple for each entry, so that the collector of
Python 3.11 runs meanwhile, and its callbacks let other threads have the interpreter. While queues were made their
checkpoint failed with "dictionary changed size during iteration", again and again.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from tests.store_records import SMALL, append, make_record

MANY = 500


@contextmanager
def when_the_collector_runs(change: Callable[[int], object]) -> Iterator[None]:
    """As another thread would that gets the interpreter there. A collection is due with every few new objects."""
    numbers, thresholds = itertools.count(MANY), gc.get_threshold()

    def callback(phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            change(next(numbers))

    gc.callbacks.append(callback)
    gc.set_threshold(5, 1_000, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(callback)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", SMALL) as opened:
        yield opened


def test_how_far_queues_reach(store: Store) -> None:
    for number in range(MANY):
        append(store, make_record(topic=f"t{number}"))
    queues = store._dispatcher.queues
    with when_the_collector_runs(lambda number: queues.__setitem__((f"t{number}", 0), queues["t0", 0])):
        reached = store._dispatcher.max_offsets()
    assert reached.items() >= {f"t{number}": {0: 1} for number in range(MANY)}.items()


def test_consumers_progress(store: Store) -> None:
    for number in range(MANY):
        store.consumer_offsets.commit(f"g{number}", "t", 0, 1)
    progress = store._parts.progress
    with when_the_collector_runs(lambda number: progress.consumers.setdefault(f"g{number}", {})):
        encoded = progress._encoded_consumers()
    assert encoded.count(b"t@g") >= MANY


def test_what_is_out(store: Store) -> None:
    for number in range(MANY):
        store.in_flight.deliver((f"g{number}", "t", 0), 1, {0: InFlightMessage(1, 2, 0, 16, 1)})
    queues = store.in_flight._queues
    with when_the_collector_runs(lambda number: queues.__setitem__((f"g{number}", "t", 0), queues["g0", "t", 0])):
        told = list(store.in_flight._entries())
    assert len(told) > MANY


def test_which_topics_were_deleted(store: Store) -> None:
    deleted = store._parts.deleted_topics
    deleted.update({f"t{number}": 1 for number in range(MANY)})
    append(store, make_record())
    with when_the_collector_runs(lambda number: deleted.setdefault(f"t{number}", 1)):
        store._save_checkpoint()
    assert store._parts.checkpoint.physical_ms > 0


def test_which_files_a_queue_has(store: Store) -> None:
    append(store, make_record())
    files = store._dispatcher.queues["orders", 0]._files
    files._files.update({16 * 20 * number: None for number in range(1, MANY)})
    with when_the_collector_runs(lambda number: files._files.setdefault(16 * 20 * number, None)):
        files.sync_data(0, 16 * 20)
    for start in [each for each in files._files if each]:
        del files._files[start]
