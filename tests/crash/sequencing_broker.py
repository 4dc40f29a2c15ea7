"""A broker's core with idempotent producers; as a program it stores one numbered batch, and a failpoint may kill it.

python sequencing_broker.py DIRECTORY FILE_BYTES FIRST COUNT BODY_BYTES numpy|compiled
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.protocol import RecordPositions
from raymq.storage import failpoints
from raymq.storage.clock import wall_ms
from raymq.storage.config import StoreConfig
from raymq.storage.files.file_calls import replaced
from raymq.storage.records import native_kernels
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from raymq.storage.state_opening import open_state
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.state_tables import StateTables
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import UnsyncedCalls
from tests.store_records import SMALL, make_record
from tests.validation import check_invariants

TOPIC, QUEUE = "orders", 0
PRODUCER = "00000000000000ab"
#: A configuration whose background thread never wakes up.
CONFIG = replace(SMALL, index_slots=100, index_entries=1_000, flush_interval_ms=3_600_000)


class SequencingBroker:
    """A broker's core on the store in `directory`."""

    def __init__(self, directory: Path, config: StoreConfig = CONFIG, now_ms: Callable[[], int] = wall_ms) -> None:
        self.directory = directory
        self.store = Store.open(directory, config, now_ms=now_ms)
        self.core = BrokerCore("broker-a", self.store, clock=lambda: now_ms() / 1000)
        if self.store.topic_configs.get(TOPIC) is None:
            self.store.topic_configs.put(TopicConfig(TOPIC, 1, 1))
        self.history = ProducerStateJournal(self.core.producers, self.store)
        self.history.restore()
        check_invariants(self.core.producers)

    def send(self, bodies: list[bytes], first: int, epoch: int = 0) -> RecordPositions:
        """Send as an idempotent producer with sequence numbers from `first` on."""
        records = [make_record(body, topic=TOPIC, unique_key=f"k{number}") for number, body in enumerate(bodies)]
        data, sizes = bytearray(b"".join(records)), np.array([len(record) for record in records], np.int32)
        sizes = stamp(data, sizes, ProducerSequence(PRODUCER, epoch, first, len(bodies)))
        placed = self.core.append(TOPIC, QUEUE, memoryview(bytes(data)), sizes, sequenced=True)
        check_invariants(self.core.producers)
        return placed

    def send_others(self, *bodies: bytes) -> None:
        """Send as another producer, one message at a time."""
        for body in bodies:
            record = make_record(body, topic=TOPIC)
            self.core.append(TOPIC, QUEUE, memoryview(record), np.array([len(record)], np.int32))

    def save(self) -> None:
        """Save the producers' state, as a broker does every few seconds."""
        for write in self.history.save():
            write()

    def bodies(self) -> list[bytes]:
        """Return all bodies of the queue."""
        if QUEUE not in self.store.queues(TOPIC):
            return []
        found: list[bytes] = []
        low, high = self.core.bounds(TOPIC, QUEUE)
        while low + len(found) < high:
            with self.store.read(TOPIC, QUEUE, low + len(found), 1_000) as lease:
                found += [record.body for record in lease.messages()]
        return found

    def named(self, placed: RecordPositions) -> list[bytes]:
        """Return the bodies at the positions of an answer, read by queue offset and by physical offset."""
        bodies = self.bodies()
        found = [bodies[offset] for offset in np.asarray(placed.queue_offsets).tolist()]
        assert found == [self.store.read_at(place).body for place in np.asarray(placed.physical_offsets).tolist()]
        assert set(np.asarray(placed.queue_ids).tolist()) == {QUEUE}
        return found

    def die(self) -> None:
        """Stop as after SIGKILL: nothing is flushed or completed."""
        self.store._flusher.stop()
        self.core.timers.log.close()
        self.store._abandon()

    def close(self) -> None:
        """Close in order."""
        self.core.timers.close()
        self.store.close()


def drop_saved_states(directory: Path) -> None:
    """Remove the producers' saved states, so that the next start reads the whole log."""
    tables = StateTables()
    journal, _ = open_state(StorePaths(directory), tables, lambda _: None, writable=True)
    tables.producer_states.put([row[:3] for row in list(tables.producer_states.rows())])
    tables.producer_states.advance(0)
    journal.close(compact=False)


def numbered_bodies(first: int, count: int, body_bytes: int) -> list[bytes]:
    """Return bodies that contain their numbers."""
    return [b"%d " % number + b"x" * body_bytes for number in range(first, first + count)]


def main(directory: str, file_bytes: str, first: str, count: str, body_bytes: str, batch_code: str) -> None:
    """Store one message, then the batch."""
    native_kernels.use(importlib.import_module("raymq_native") if batch_code == "compiled" else None)
    with replaced(UnsyncedCalls()):
        failpoint = failpoints._armed, failpoints._left
        failpoints.arm("")
        broker = SequencingBroker(Path(directory), replace(CONFIG, commitlog_file_bytes=int(file_bytes)))
        broker.send([b"before"], 0)
        failpoints._armed, failpoints._left = failpoint
        broker.send(numbered_bodies(int(first), int(count), int(body_bytes)), int(first))
        failpoints.arm("")
        broker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
