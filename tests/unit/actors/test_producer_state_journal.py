"""Test that the producer state is journaled in steps and restored (fault 13.28)."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from raymq.actors.broker.core.appending import producer_state_journal
from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.records import producer_sequence
from raymq.storage.records.producer_sequence import ProducerSequence
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import FaultyCalls
from tests.store_records import make_record

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
        self.history = ProducerStateJournal(self.core.producers, self.store, directory / "raymq" / "producers.journal")
        self.history.restore()

    def send(self, lane: int, number: int) -> int:
        record = bytearray(make_record(b"%d" % number, queue_id=lane))
        producer_sequence.stamp_first(record, ProducerSequence(f"{lane:016x}", 0, number, 1))
        return self.core.append_one_sequenced(self.store.check_one(record))[0]

    def known(self) -> dict[tuple[object, ...], list[object]]:
        """Return the lanes without their time of use, which the log rounds to milliseconds."""
        table = self.core.producers
        return {tuple(row[:3]): [*row[3:5], *row[6:]] for row in table.rows(table.lanes())}

    def save(self) -> None:
        for write in self.history.save():
            write()

    def close(self) -> None:
        self.history.close()
        self.store.close()


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(producer_state_journal, "_STEP_LANES", 4)
    started = Broker(tmp_path / "s")
    yield started
    started.close()


def state_after_kill(broker: Broker, target: Path) -> dict[tuple[object, ...], list[object]]:
    shutil.copytree(broker.directory, target)
    again = Broker(target)
    again.core.producers.validate()
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
    for lane in range(LANES):
        broker.send(lane, 0)
    sizes = []
    for write in broker.history.save():
        write()
    first = broker.history._journal.length
    assert list(broker.history.save()) == []
    broker.send(3, 1)
    for write in broker.history.save():
        write()
        sizes.append(broker.history._journal.length)
    assert sizes[-1] - first < first / 4
    content = (broker.directory / "raymq" / "producers.journal").read_bytes()
    assert len(content) == sizes[-1]
    rows = [len(msgpack.unpackb(value)) for kind, value in Reopened(broker).entries if kind == "l"]
    assert rows == [4, 4, 4, 1]


class Reopened:
    """Read the frames of a broker's journal."""

    def __init__(self, broker: Broker) -> None:
        journal = producer_state_journal.FrameFile(broker.directory / "raymq" / "producers.journal", writable=False)
        self.entries = journal.entries


def test_journal_size_stays_proportional_to_lanes(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_state_journal, "_LEAST_FOLD_BYTES", 100)
    broker.history._fold_at = 100
    longest = []
    for number in range(60):
        for lane in range(LANES):
            broker.send(lane, number)
        broker.save()
        longest.append(broker.history._journal.length)
    assert max(longest[30:]) <= 1.1 * max(longest[:30])  # numbers become longer
    assert state_after_kill(broker, tmp_path / "killed") == broker.known()


def test_failed_save_is_completed_by_next_save(broker: Broker, tmp_path: Path) -> None:
    for lane in range(LANES):
        broker.send(lane, 0)
    with replaced(FaultyCalls("write", 2, errno.ENOSPC, lasting=True)), pytest.raises(StoreFull):
        broker.save()
    broker.save()
    rows = [row for kind, value in Reopened(broker).entries if kind == "l" for row in msgpack.unpackb(value)]
    assert {row[2] for row in rows} == set(range(LANES))
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
