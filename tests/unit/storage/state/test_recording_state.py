"""Test that a master's recorded state changes give equal files on a replica."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreFollows
from raymq.storage.files import file_calls, fileutil
from raymq.storage.files.file_calls import FileCalls
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.topic_config import TopicConfig
from tests.state_shipping import ship_all, ship_state, state_of, take_snapshot
from tests.store_records import SMALL
from tests.store_replication import fill, log_content, read_bodies


@contextlib.contextmanager
def open_recorded_store(directory: Path) -> Iterator[tuple[Store, StateRecorder]]:
    """Open a store whose changes are recorded."""
    recorder = StateRecorder.begin(directory, log_end=lambda: 0)
    try:
        with Store.open(directory, SMALL) as store:
            recorder.log_end = lambda: store.max_physical_offset
            yield store, recorder
    finally:
        recorder.stop()


def change_state(store: Store, number: int = 0) -> None:
    """Change some of everything that a store keeps."""
    fill(store, 5, seed=number)
    store.topic_configs.put(TopicConfig("orders", 4 + number, 4))
    store.consumer_offsets.commit("g", "orders", 0, 1)
    store.delay_offsets.commit(1, 0, store.max_physical_offset)
    store.in_flight.deliver(("g", "parts", 0), 2, {1: InFlightMessage(1_000, 2_000 + number, 0, 16)})


def test_replica_state_files_equal_the_masters(tmp_path: Path) -> None:
    replica = StateReplica(tmp_path / "replica")
    assert replica.last == 0, "nobody knows what is in a directory that was never filled"
    with open_recorded_store(tmp_path / "master") as (store, recorder):
        change_state(store)
        take_snapshot(recorder, replica)
        assert replica.last == recorder.last
        assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")
        change_state(store, 1)
        store.delete_topic("orders")
        change_state(store, 2)
    ship_state(recorder, replica)
    assert replica.last == recorder.last > recorder.folded
    state = state_of(tmp_path / "replica")
    assert state == state_of(tmp_path / "master")
    assert {"config/topics.json", "config/consumerOffset.json", "raymq/state"} <= state.keys()


def test_replicated_log_and_state_give_an_equal_store(tmp_path: Path) -> None:
    with open_recorded_store(tmp_path / "master") as (store, recorder):
        replica = StateReplica(tmp_path / "replica")
        take_snapshot(recorder, replica)
        with Store.open(tmp_path / "replica", SMALL, is_replica=True) as follower:
            for number in range(3):
                change_state(store, number)
                store.delete_topic("orders")
                fill(store, 3, seed=10 + number)
                ship_all(store, recorder, follower, replica)
                assert read_bodies(follower) == read_bodies(store)
            with pytest.raises(StoreFollows):
                follower.delete_topic("orders")
            with pytest.raises(InvalidInput):
                follower.become_leader()
        tables = store.consumer_offsets.get("g", "orders", 0), store.topic_configs.all(), dict(store.in_flight.queues)
        expected = read_bodies(store)
    replica.close()
    assert log_content(tmp_path / "replica") == log_content(tmp_path / "master")
    with Store.open(tmp_path / "replica", SMALL) as promoted:
        assert not promoted.recovery.clean
        assert read_bodies(promoted) == expected
        offset = promoted.consumer_offsets.get("g", "orders", 0)
        assert (offset, promoted.topic_configs.all(), dict(promoted.in_flight.queues)) == tables


def test_file_calls_are_plain_without_a_recorder(tmp_path: Path) -> None:
    with open_recorded_store(tmp_path / "master"), open_recorded_store(tmp_path / "other"):
        assert type(file_calls.current) is not FileCalls
    assert type(file_calls.current) is FileCalls
    with Store.open(tmp_path / "one_copy", SMALL):
        assert type(file_calls.current) is FileCalls
        assert not (tmp_path / "one_copy" / "raymq" / "state_sequence").exists()


def test_writes_to_replaced_and_removed_files_are_not_replicated(tmp_path: Path) -> None:
    # Open descriptors of replaced and removed files lead to files without a name.
    directory = tmp_path / "master"
    replica = StateReplica(tmp_path / "replica")
    recorder = StateRecorder.begin(directory, log_end=lambda: 0)
    fileutil.make_folder(directory / "config")
    take_snapshot(recorder, replica)
    paths = [directory / "config" / name for name in ("replaced", "removed", "renamed")]
    descriptors = [fileutil.open_for_append(path) for path in paths]
    fileutil.replace(paths[0], b"new")
    fileutil.unlink(paths[1])
    fileutil.move(paths[2], directory / "config" / "other")
    for fd, path in zip(descriptors, paths, strict=True):
        fileutil.write_all(fd, b"written", path)
        fileutil.truncate(fd, 5, path)
        fileutil.close(fd)
    recorder.stop()
    ship_state(recorder, replica)
    assert state_of(tmp_path / "replica") == state_of(directory)
    assert state_of(directory) == {"config/replaced": b"new", "config/other": b"writt"}
