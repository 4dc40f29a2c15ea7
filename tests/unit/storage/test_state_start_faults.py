"""Test that killed starts, refused syncs and damaged ends lose no table."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.storage.errors import StoreFailed, StoreFull
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.journal_files import journal_path
from raymq.storage.journal.journaled_table import JournaledTable
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store
from raymq.storage.tables.coordinator_table import CoordinatorTable, KnownBrokers
from raymq.storage.tables.request_mode import RequestModes
from raymq.storage.tables.stream_plan_store import MAX_QUERIES, StreamPlanStore
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import FaultyCalls
from tests.store_records import SMALL


def journal_of(folder: Path, table: JournaledTable) -> StateJournal:
    return StateJournal(folder, [table], writable=True)


def directory_without_journal(path: Path) -> Path:
    """Make a store directory that has lost its state journal, but has RocketMQ's files."""
    with Store.open(path, SMALL) as store:
        store.tables.topics.put(TopicConfig("orders", 2, 2), TopicConfig("bills", 2, 2))
        for queue in range(2):
            store.consumer_offsets.commit("g", "orders", queue, 0)
    shutil.rmtree(path / "raymq" / "state")
    return path


@pytest.mark.parametrize("nth", range(1, 8))
def test_refused_write_in_first_start_loses_no_table(tmp_path: Path, nth: int) -> None:
    """After the first table was read, the files of the others were not read again."""
    directory = directory_without_journal(tmp_path)
    with replaced(FaultyCalls("write", nth, errno.EIO)):
        try:
            store = Store.open(directory, SMALL)
        except (StoreFull, StoreFailed):
            pass
        else:
            store._flusher.stop()
            store._abandon()
    with Store.open(directory, SMALL) as store:
        assert {"orders", "bills"} <= store.tables.topics.all().keys()
        assert [store.consumer_offsets.get("g", "orders", queue) for queue in range(2)] == [0, 0]


RETRIES: dict[str, tuple[Callable[[], JournaledTable], Callable[..., object]]] = {
    "coordinator": (CoordinatorTable, lambda table: table.remember("stream", "key", "broker-a")),
    "broker": (KnownBrokers, lambda table: table.add(["broker-a"], synced=True)),
    "plan": (StreamPlanStore, lambda table: table.put("s", "q", 0, b"plan")),
}


@pytest.mark.parametrize("kind", RETRIES)
def test_retry_after_failed_sync_fails_too(tmp_path: Path, kind: str) -> None:
    """The retry found its change made, and told so although it was not on disk."""
    make, change = RETRIES[kind]
    table = make()
    journal = journal_of(tmp_path, table)
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        change(table)
    with pytest.raises(StoreFailed):
        change(table)
    journal.close(compact=False)


@pytest.mark.parametrize("kind", RETRIES)
def test_retry_of_an_earlier_start_syncs(tmp_path: Path, kind: str) -> None:
    make, change = RETRIES[kind]
    table = make()
    journal = journal_of(tmp_path, table)
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        change(table)
    journal.close(compact=False)
    again = make()
    journal = journal_of(tmp_path, again)
    calls = FaultyCalls()
    with replaced(calls):
        change(again)
    assert calls.counts["fdatasync"] > 0
    journal.close(compact=False)


def test_refused_plan_removes_no_other(tmp_path: Path) -> None:
    plans = StreamPlanStore()
    journal = journal_of(tmp_path, plans)
    for number in range(MAX_QUERIES):
        plans.put("s", f"q{number}", 0, b"plan")
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)), pytest.raises(StoreFull):
        plans.put("s", "new", 0, b"plan")
    with replaced(FaultyCalls("write", 2, errno.ENOSPC)), pytest.raises(StoreFull):
        plans.put("s", "new", 0, b"plan")
    assert plans.kept("s", "new") == [(0, b"plan")]
    assert plans.kept("s", "q0") == [(0, b"plan")]
    journal.close(compact=False)


def test_export_lacks_deleted_topic(tmp_path: Path) -> None:
    """The deletion is an event of another table, so the files were taken for unchanged."""
    with Store.open(tmp_path, SMALL) as store:
        store.tables.topics.put(TopicConfig("orders", 1, 1))
        store.consumer_offsets.commit("g", "orders", 0, 0)
        store.begin_export()()
        assert "orders" in json_file.load(tmp_path / "config" / "topics.json")["topicConfigTable"]
        store.delete_topic("orders")
    assert "orders" not in json_file.load(tmp_path / "config" / "topics.json")["topicConfigTable"]
    assert json_file.load(tmp_path / "config" / "consumerOffset.json")["offsetTable"] == {}


def test_damage_of_only_event_is_met_once(tmp_path: Path) -> None:
    modes = RequestModes()
    journal = journal_of(tmp_path, modes)
    modes.record("t", "g", 1, 0)
    journal.close(compact=False)
    path = journal_path(tmp_path, 1)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for is_damaged in (True, False):
        journal = journal_of(tmp_path, RequestModes())
        assert bool(journal.loaded.damage) is is_damaged
        journal.compact_after_damage()
        journal.close(compact=False)


def test_refused_event_is_cut_on_disk_and_before_close(tmp_path: Path) -> None:
    """A sync of another thread may have taken the event to the disk before it was refused."""
    brokers = KnownBrokers()
    journal = journal_of(tmp_path, brokers)
    brokers.add(["broker-a"], synced=True)
    length = journal_path(tmp_path, 1).stat().st_size

    def refuse() -> None:
        raise KeyError("refused")

    calls = FaultyCalls()
    with replaced(calls), pytest.raises(KeyError):
        journal.append(brokers, ("broker-b", True), refuse)
    assert calls.counts["truncate"] == calls.counts["fdatasync"] == 1
    with replaced(FaultyCalls("truncate", 1, errno.ENOSPC)), pytest.raises(KeyError):
        journal.append(brokers, ("broker-c", True), refuse)
    assert journal_path(tmp_path, 1).stat().st_size > length
    journal.close(compact=False)
    assert journal_path(tmp_path, 1).stat().st_size == length
    assert os.listdir(tmp_path) == [journal_path(tmp_path, 1).name]
