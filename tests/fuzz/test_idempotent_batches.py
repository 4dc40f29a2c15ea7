"""Fuzz batches of idempotent producers: a repeated send after a lost answer is stored once, and found.

The real classes have a simulated clock and are killed by being dropped: their directory is reopened, and the broker
restores producers' state from its journal, which is rewritten often, and from the log. The disk is full for a while.
The model is small: the next sequence number of each producer in each queue, and the acknowledged messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.client import Message
from raymq.storage.errors import StoreError
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from tests.fuzz.failing_disk import FailingDisk
from tests.fuzz.seeds import do, seeded, try_each
from tests.unit.actors.bench import CONFIG, Bench, encoded
from tests.validation import check_invariants

QUEUES = range(2)
OTHERS = b"somebody else's"


@dataclass(frozen=True)
class Batch:
    """A batch without an answer yet."""

    records: bytes
    sizes: npt.NDArray[np.int32]
    bodies: list[bytes]
    delayed: bool


@dataclass
class Lane:
    """A producer's state for one queue: without a pending batch it sends its next number."""

    producer: str
    queue_id: int
    next_number: int = 0
    under_way: Batch | None = None


class IdempotentBatchesFuzz:
    """A broker and two idempotent producers, each with a lane to both queues."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._disk = FailingDisk(seed, "write", "rename", "allocate")
        self._directory = directory
        self._lanes = [Lane(producer, queue_id) for producer in ("A", "B") for queue_id in QUEUES]
        self._acknowledged: set[bytes] = set()

    def live(self) -> None:
        works: list[Callable[[], None]] = [self.send, self.send, self.send, self.send, self.send, self.save]
        works += [self.send_others, self.fill_disk, self.kill, self.restart]
        with replaced(self._disk):
            self._bench = Bench(self._directory / "broker-a", replace(CONFIG, commitlog_file_bytes=1 << 16))
            self._bench.core.topics.create("t", len(QUEUES))
            self._restore()
            try:
                for _ in range(120):
                    self._do(self._random.choice(works))
                self._disk.heal()
                self._check()
            finally:
                self._disk.heal()
                with suppress(StoreError):
                    self._bench.core.timers.log.close()
                    self._bench.store.close()

    def _do(self, work: Callable[[], None]) -> None:
        do(self.log, work, lambda: self._bench.store, self.kill)
        check_invariants(self._bench.core.producers)

    def send(self) -> None:
        """Send a lane's pending batch or a new one; the answer may be lost."""
        lane = self._random.choice(self._lanes)
        if lane.under_way is None:
            lane.under_way = self._new_batch(lane)
        batch = lane.under_way
        placed = self._bench.core.append(
            "t", lane.queue_id, memoryview(batch.records), batch.sizes, delayed=batch.delayed, sequenced=True
        )
        offsets = np.asarray(placed.queue_offsets).tolist()
        assert len(offsets) == len(batch.bodies)
        if not batch.delayed:
            with self._bench.store.read("t", lane.queue_id, offsets[0], 1) as lease:
                assert lease.messages()[0].body == batch.bodies[0], "the answer names another place"
        self._acknowledged.update(batch.bodies)
        if self._random.random() < 0.6:
            lane.next_number += len(batch.bodies)
            lane.under_way = None

    def save(self) -> None:
        """Save the producers' state, as a broker does every few seconds."""
        for write in self._history.save():
            write()

    def send_others(self) -> None:
        self._bench.append(Message("t", OTHERS), queue_id=self._random.choice(QUEUES))

    def fill_disk(self) -> None:
        self._disk.chance = self._random.choice((0.0, 0.05, 0.2))

    def kill(self) -> None:
        self._disk.heal()
        self._bench.core.timers.log.close()
        self._bench.crash()
        self._restore()

    def restart(self) -> None:
        self._disk.heal()
        self.save()
        self._bench.core.timers.close()
        self._bench.store.close()
        self._bench.open()
        self._restore()

    def _restore(self) -> None:
        self._history = ProducerStateJournal(self._bench.core.producers, self._bench.store)
        self._history.restore()

    def _new_batch(self, lane: Lane) -> Batch:
        count = self._random.choice((1, 1, 3, 20))
        delayed = count == 1 and self._random.random() < 0.15
        messages = [
            Message(
                "t",
                f"{lane.producer}:{lane.queue_id}:{lane.next_number + number} ".encode()
                + b"x" * self._random.choice((0, 800)),
                delay_level=1 if delayed else 0,
            )
            for number in range(count)
        ]
        records, sizes = encoded(*messages, queue_id=lane.queue_id)
        stamped = bytearray(records)
        sizes = stamp(stamped, sizes, ProducerSequence(lane.producer, 0, lane.next_number, count))
        return Batch(bytes(stamped), sizes, [message.body for message in messages], delayed)

    def _check(self) -> None:
        self._bench.clock.advance(100.0)
        self._bench.core.deliver_due()
        self._bench.core.deliver_due()
        bodies = [body for queue_id in QUEUES for body in self._bench.bodies("t", queue_id) if body != OTHERS]
        assert len(bodies) == len(set(bodies)), "stored twice"
        assert self._acknowledged - set(bodies) == set(), "acknowledged, and lost"


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 300)


@seeded(few=5, many=300)
def test_repeated_batch_is_stored_once(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, IdempotentBatchesFuzz)
