"""Test that a thread copies a table in one operation while another thread changes it.

Fault of a broker with 80,000 queues: `list(table.items())` makes a tuple for each entry, so that the collector of
Python 3.11 runs meanwhile, and its callbacks let other threads have the interpreter. While queues were created, the
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
def change_during_collections(change: Callable[[int], object]) -> Iterator[None]:
    """Make the change at each collection, as another thread with the interpreter would.

    A collection is due with every few new objects.
    """
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


def test_max_offsets_are_copied_while_queues_are_added(store: Store) -> None:
    for number in range(MANY):
        append(store, make_record(topic=f"t{number}"))
    queues = store._dispatcher.queues
    with change_during_collections(lambda number: queues.__setitem__((f"t{number}", 0), queues["t0", 0])):
        reached = store._dispatcher.max_offsets()
    assert reached.items() >= {f"t{number}": {0: 1} for number in range(MANY)}.items()


def test_consumer_offsets_are_encoded_during_commits(store: Store) -> None:
    for number in range(MANY):
        store.consumer_offsets.commit(f"g{number}", "t", 0, 1)
    progress = store._parts.progress
    with change_during_collections(lambda number: progress.consumers.setdefault(f"g{number}", {})):
        encoded = progress._encoded_consumers()
    assert encoded.count(b"t@g") >= MANY


def test_in_flight_entries_are_listed_during_deliveries(store: Store) -> None:
    for number in range(MANY):
        store.in_flight.deliver((f"g{number}", "t", 0), 1, {0: InFlightMessage(1, 2, 0, 16, 1)})
    queues = store.in_flight._queues
    with change_during_collections(lambda number: queues.__setitem__((f"g{number}", "t", 0), queues["g0", "t", 0])):
        entries = list(store.in_flight._entries())
    assert len(entries) > MANY


def test_checkpoint_succeeds_during_topic_deletions(store: Store) -> None:
    deleted = store._parts.deleted_topics
    deleted.update({f"t{number}": 1 for number in range(MANY)})
    append(store, make_record())
    with change_during_collections(lambda number: deleted.setdefault(f"t{number}", 1)):
        store._save_checkpoint()
    assert store._parts.checkpoint.physical_ms > 0


def test_queue_files_are_synced_while_files_are_added(store: Store) -> None:
    append(store, make_record())
    files = store._dispatcher.queues["orders", 0]._files
    files._files.update({16 * 20 * number: None for number in range(1, MANY)})
    with change_during_collections(lambda number: files._files.setdefault(16 * 20 * number, None)):
        files.sync_data(0, 16 * 20)
    for start in [each for each in files._files if each]:
        del files._files[start]
