"""Test that the producer state is journaled in steps and restored (fault 13.28)."""

from __future__ import annotations

import errno
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.core.appending import idempotence, producer_state_journal
from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.records import producer_sequence
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.store import Store
from raymq.storage.tables import producer_states
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import FaultyCalls
from tests.state_journals import wait_for_compaction
from tests.store_records import SMALL, make_record
from tests.validation import check_invariants

CONFIG = StoreConfig(commitlog_file_bytes=1 << 20, index_slots=50, index_entries=10_000, disk_refuse_ratio=1.0)
LANES = 12


class Broker:
    """Run a broker core with its producer state journal, without loop and sockets."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store.open(directory, CONFIG)
        self.core = BrokerCore("b", self.store)
        if self.store.topic_configs.get("orders") is None:
            self.store.topic_configs.put(TopicConfig("orders", LANES, LANES))
        self.history = ProducerStateJournal(self.core.producers, self.store)
        self.history.restore()

    def send(self, lane: int, number: int) -> int:
        record = bytearray(make_record(b"%d" % number, queue_id=lane))
        producer_sequence.stamp_first(record, ProducerSequence(f"{lane:016x}", 0, number, 1))
        return self.core.append_one(self.store.check_one(record), sequenced=True)[0]

    def known(self) -> dict[tuple[object, ...], list[object]]:
        """Return the lanes without their time of use, which the log rounds to milliseconds."""
        table = self.core.producers
        return {tuple(row[:3]): [*row[3:5], *row[6:]] for row in table.rows(table.lanes())}

    def save(self) -> None:
        for write in self.history.save():
            write()

    def saved(self) -> dict[tuple[object, ...], list[object]]:
        """Return the saved lanes as `known`."""
        rows = self.store.tables.producer_states.rows()
        return {tuple(row[:3]): [*row[3:5], [tuple(each) for each in row[6]], row[7]] for row in rows}

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    for module in (producer_state_journal, producer_states):
        monkeypatch.setattr(module, "EVENT_LANES", 4)
    started = Broker(tmp_path / "s")
    yield started
    started.close()


def state_after_kill(broker: Broker, target: Path) -> dict[tuple[object, ...], list[object]]:
    shutil.copytree(broker.directory, target)
    again = Broker(target)
    check_invariants(again.core.producers)
    known = again.known()
    again.close()
    shutil.rmtree(target)
    return known


def test_kill_between_save_steps_keeps_producer_state(broker: Broker, tmp_path: Path) -> None:
    sent = [0] * LANES
    for lane in range(LANES):
        for _ in range(1 + lane % 7):
            broker.send(lane, sent[lane])
            sent[lane] += 1
    for _ in range(3):
        for steps, write in enumerate(broker.history.save()):
            for lane in (steps, LANES - 1 - steps):  # one is saved already, the other not yet
                broker.send(lane, sent[lane])
                sent[lane] += 1
            assert state_after_kill(broker, tmp_path / "before") == broker.known()
            write()
            assert state_after_kill(broker, tmp_path / "killed") == broker.known()
    shutil.copytree(broker.directory, tmp_path / "again")
    again = Broker(tmp_path / "again")
    for lane in range(LANES):
        assert again.send(lane, sent[lane] - 1) == sent[lane] - 1  # a duplicate is not stored again
        assert again.send(lane, sent[lane]) == sent[lane]
    again.close()


def test_save_writes_changed_lanes_in_small_steps(broker: Broker) -> None:
    def save() -> list[int]:
        """Save, and return how many events each step wrote."""
        journal, counts = broker.store._parts.journal, []
        for write in broker.history.save():
            before = journal.last
            write()
            counts.append(journal.last - before)
        return counts

    for lane in range(LANES):
        broker.send(lane, 0)
    assert save() == [1, 1, 1, 1]  # four lanes each, then the position
    assert list(broker.history.save()) == []
    broker.send(3, 1)
    assert save() == [1, 1]
    assert broker.saved() == broker.known()


def test_saved_states_are_compacted_with_the_tables(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 100)
    broker.store._parts.journal._compact_at = 100
    for number in range(60):
        for lane in range(LANES):
            broker.send(lane, number)
        broker.save()
    wait_for_compaction(broker.store)
    assert len(list((broker.directory / "raymq" / "state").glob("snapshot-*"))) == 2
    assert state_after_kill(broker, tmp_path / "killed") == broker.known()


def test_expired_lanes_leave_the_saved_states(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the table would grow for ever, with a lane for each producer that ever was."""
    for lane in range(LANES):
        broker.send(lane, 0)
    broker.save()
    assert broker.saved().keys() == broker.known().keys()
    monkeypatch.setattr(idempotence, "EXPIRY_SECONDS", 0.0)
    broker.save()
    assert broker.saved() == broker.known() == {}
    assert state_after_kill(broker, tmp_path / "killed") == {}


def test_lanes_beyond_the_limit_leave_the_saved_states(broker: Broker) -> None:
    broker.core.producers._max_lanes = 3
    for lane in range(LANES):
        broker.send(lane, 0)
        broker.save()
    assert broker.saved().keys() == broker.known().keys()
    assert len(broker.saved()) == 3


def test_deletion_takes_the_lanes_of_its_topic_at_once(broker: Broker, tmp_path: Path) -> None:
    broker.send(0, 0)
    broker.save()
    broker.core.topics.delete("orders")
    assert broker.saved() == {}
    assert state_after_kill(broker, tmp_path / "killed") == {}


def test_save_that_a_deletion_overtakes_brings_no_lane_back(broker: Broker, tmp_path: Path) -> None:
    for lane in range(LANES):
        broker.send(lane, 0)
    for step, write in enumerate(broker.history.save()):
        if step == 1:
            broker.core.topics.delete("orders")
        write()
        if step >= 1:
            assert state_after_kill(broker, tmp_path / "killed") == {}
    broker.save()
    assert broker.saved() == {}


def test_failed_save_is_completed_by_next_save(broker: Broker, tmp_path: Path) -> None:
    for lane in range(LANES):
        broker.send(lane, 0)
    with replaced(FaultyCalls("write", 2, errno.ENOSPC, lasting=True)), pytest.raises(StoreFull):
        broker.save()
    broker.save()
    assert broker.saved() == broker.known()
    assert state_after_kill(broker, tmp_path / "killed") == broker.known()


def test_late_write_of_a_cancelled_save_changes_nothing(broker: Broker, tmp_path: Path) -> None:
    # Its older rows would stand before a newer position.
    broker.send(0, 0)
    cancelled = broker.history.save()
    late = next(cancelled)
    cancelled.close()
    broker.send(0, 1)
    broker.save()
    late()
    assert broker.saved() == broker.known()
    assert state_after_kill(broker, tmp_path / "killed") == broker.known()


def test_lanes_of_deleted_topic_are_not_restored(broker: Broker, tmp_path: Path) -> None:
    broker.send(0, 0)
    broker.save()
    broker.core.topics.delete("orders")
    broker.store.topic_configs.put(TopicConfig("orders", LANES, LANES))
    broker.send(1, 0)
    broker.save()
    assert set(broker.known()) == {(f"{1:016x}", "orders", 1)}
    assert state_after_kill(broker, tmp_path / "killed") == broker.known()


def test_states_of_format_2_are_restored(repository: Path, tmp_path: Path) -> None:
    with tarfile.open(repository / "tests" / "fixtures" / "format_2" / "killed.tar.xz") as archive:
        archive.extractall(tmp_path)
    with Store.open(tmp_path, replace(SMALL, index_slots=100, index_entries=1_000)) as store:
        assert len(list(store.tables.producer_states.rows())) == 1
        core = BrokerCore("b", store, clock=lambda: 1_700_000_000.0)
        ProducerStateJournal(core.producers, store).restore()
        check_invariants(core.producers)
        for number in (0, 1, 2, 3, 3):  # the third one was not saved
            record = bytearray(make_record(b"sent", queue_id=1))
            producer_sequence.stamp_first(record, ProducerSequence("00000000000000ab", 0, number, 1))
            assert core.append_one(store.check_one(record), sequenced=True)[0] == number
        core.timers.close()
