"""Test a start that fails after a power loss: the next start still detects what was lost.

The failed start truncates log and queues to one end, and closes the store as complete. Other files, which it did not
read, may still refer to positions beyond that end.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker import opened_broker
from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.opened_broker import OpenedBroker
from raymq.actors.protocol import BrokerSpec
from raymq.client import Message
from raymq.storage import checkpointer, store_parts
from raymq.storage.files.file_calls import replaced
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from raymq.storage.store import Store
from tests.crash.power_loss import Disk
from tests.store_records import SMALL
from tests.unit.actors.bench import encoded
from tests.unit.actors.clock import FakeClock

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)
PRODUCER = "00000000000000ab"


class Machine:
    """Run a broker core on a disk whose machine loses power."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.boots = 0
        self.clock = FakeClock(1_700_000_000.0)
        for module in (store_parts, checkpointer):
            monkeypatch.setattr(module, "boot_id", lambda: f"boot {self.boots}")
        self.directory = root / "0"
        self.directory.mkdir()
        self.disk = Disk(self.directory)

    def open(self) -> None:
        self.store = Store.open(self.directory, CONFIG, now_ms=lambda: int(self.clock.now * 1000))
        self.core = BrokerCore("broker-a", self.store, clock=self.clock)
        self.core.topics.create("t", 1)
        self.producers = ProducerStateJournal(self.core.producers, self.store)
        self.producers.restore()

    def leave(self, *, clean: bool = False) -> None:
        self.core.timers.log.close()
        if clean:
            self.store.close()
        else:
            self.store._flusher.stop()
            self.store._abandon()

    def lose_power(self, *kept: Path) -> None:
        """Drop unsynced data, but for the `kept` files, which the system had written by itself."""
        for path in kept:
            sync_path(path)
        self.boots += 1
        target = self.root / str(self.boots)
        self.disk.after_power_loss(target, random.Random(1), 0.0)
        self.leave()
        self.disk.close()
        self.directory = target

    def start_in_vain(self) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("what stands behind the opening of the store")

        spec = BrokerSpec("broker-a", "c", str(self.directory), "127.0.0.1", (), store={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(opened_broker, "write_identity", fail)
            with pytest.raises(RuntimeError):
                OpenedBroker.open(spec, 1, 1)

    def deliver(self) -> None:
        self.clock.advance(10)
        self.core.timers.index_new_records()
        self.core.timers.deliver_due()

    def sequenced(self, number: int) -> int:
        records, sizes = encoded(Message("t", b"%d" % number), queue_id=0)
        stamped = bytearray(records)
        sizes = stamp(stamped, sizes, ProducerSequence(PRODUCER, 0, number, 1))
        return int(self.core.append("t", 0, memoryview(bytes(stamped)), sizes, sequenced=True).queue_offsets[0])

    def send(self, body: bytes) -> None:
        records, sizes = encoded(Message("t", body), queue_id=0)
        self.core.append("t", 0, memoryview(records), sizes)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def bodies(store: Store) -> list[bytes]:
    with store.read("t", 0, store.min_offset("t", 0), 100) as lease:
        return [record.body for record in lease.messages()]


def test_delivery_beyond_log_end_is_repeated(machine: Machine) -> None:
    with replaced(machine.disk):
        machine.open()
        machine.send(b"first")
        message = Message("t", b"timed", deliver_at=machine.clock.now + 5)
        records, sizes = encoded(message, queue_id=0)
        machine.core.append("t", 0, memoryview(records), sizes, delayed=True)
        machine.store._save_checkpoint()
        machine.core.timers.index_new_records()
        write = machine.core.timers.checkpoint()
        assert write is not None
        write()
        machine.deliver()
        assert bodies(machine.store) == [b"first", b"timed"]
        machine.lose_power(*(machine.directory / "raymq" / "timers").glob("journal.*"))
    machine.start_in_vain()
    machine.open()
    assert bodies(machine.store) == [b"first"]
    machine.deliver()
    assert bodies(machine.store) == [b"first", b"timed"]
    machine.leave(clean=True)


def test_batch_lost_from_log_is_stored_again(machine: Machine) -> None:
    with replaced(machine.disk):
        machine.open()
        assert machine.sequenced(0) == 0
        for write in machine.producers.save():
            write()
        machine.store._save_checkpoint()
        assert machine.sequenced(1) == 1
        for write in list(machine.producers.save())[:-1]:  # the log position comes last
            write()
        machine.lose_power(*(machine.directory / "raymq/state").iterdir())
    machine.start_in_vain()
    machine.open()
    machine.send(b"another one")
    machine.leave()  # killed
    machine.open()
    offset = machine.sequenced(1)
    assert bodies(machine.store) == [b"0", b"another one", b"1"]
    assert offset == 2
    machine.leave(clean=True)
