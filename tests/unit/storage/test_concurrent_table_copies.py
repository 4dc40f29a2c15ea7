"""Test that a thread copies a table in one operation while another thread changes it.

Fault of a broker with 80,000 queues: `list(table.items())` makes a tuple for each entry, so that the collector of
Python 3.11 runs meanwhile, and its callbacks let other threads have the interpreter. While queues were created, the
checkpoint failed with "dictionary changed size during iteration", again and again.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raymq.storage.journal.journal_frames import encode_frame
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.state_tables import StateTables
from raymq.storage.tables.topic_config import TopicConfig
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
    offsets = store.consumer_offsets.offsets
    with change_during_collections(lambda number: offsets.setdefault(f"g{number}", {})):
        encoded = store._parts.rocketmq_files._encoded_consumers()
    assert encoded.count('"t@g') >= MANY


def test_settings_are_encoded_during_changes(store: Store) -> None:
    store.topic_configs.put_soon(*(TopicConfig(f"t{number}", 1, 1) for number in range(MANY)))
    with change_during_collections(lambda number: store.topic_configs.put_soon(TopicConfig(f"t{number}", 1, 1))):
        encoded = store.topic_configs.to_json()
    assert encoded.count('"topicName":"t') >= MANY


def deliver(store: Store, group: str) -> None:
    store.in_flight.deliver((group, "t", 0), 1, {0: InFlightMessage(1, 2, 0, 16, 1)})


#: By table: a change that adds a row of that name, through the store or as an event.
CHANGES: dict[str, Callable[[Store, str], object]] = {
    "topics": lambda store, name: store.topic_configs.put_soon(TopicConfig(name, 1, 1)),
    "groups": lambda store, name: store.group_configs.put_soon(GroupConfig(name)),
    "consumer_offsets": lambda store, name: store.consumer_offsets.commit(name, name, 0, 1),
    "in_flight": deliver,
    "request_modes": lambda store, name: store.request_modes.record("t", name, "POP", 0),
    "coordinators": lambda store, name: store.tables.coordinators.record("kind", name, "broker"),
    "known_brokers": lambda store, name: store.tables.known_brokers.record(name, True),
    "deleted_topics": lambda store, name: store.tables.deleted_topics.record("k", name, 1),
}


@pytest.mark.parametrize("table", CHANGES)
def test_snapshot_of_a_table_is_made_during_changes(store: Store, table: str) -> None:
    change, changed = CHANGES[table], getattr(store.tables, table)
    for number in range(MANY):
        change(store, f"n{number}")
    with change_during_collections(lambda number: change(store, f"n{number}")):
        events = list(changed.snapshot())
    found = repr(events)
    assert all(f"n{number}" in found for number in range(MANY))


def test_snapshot_of_delay_offsets_is_made_during_commits(store: Store) -> None:
    offsets = store.delay_offsets
    offsets.flushed_offset = lambda: 0  # so that no commit is settled
    for number in range(MANY):
        offsets.commit(1 + number % 18, number, number + 1)
    with change_during_collections(lambda number: offsets.commit(1 + number % 18, number, number + 1)):
        events = [event for _ in range(10) for event in offsets.snapshot()]
    assert {event[1] for event in events} >= set(range(MANY))


def test_tables_lose_nothing_while_snapshots_are_written(tmp_path: Path, store: Store) -> None:
    done = threading.Event()

    def change_all() -> None:
        for number in range(150):
            for table, change in CHANGES.items():
                change(store, f"{table}{number}")
                if number % 7 == 0 and table == "topics":
                    store.topic_configs.delete_soon(f"{table}{number}")
        done.set()

    thread, interval = threading.Thread(target=change_all), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        while not done.is_set():
            store._parts.journal.compact()
            store.begin_export()()
    finally:
        thread.join()
        sys.setswitchinterval(interval)
    killed = StateTables()
    StateJournal(tmp_path / "store" / "raymq" / "state", killed.all(), writable=False)
    for ours, theirs in zip(store.tables.all(), killed.all(), strict=True):
        assert sorted(map(encode_frame, ours.snapshot())) == sorted(map(encode_frame, theirs.snapshot()))


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
