"""Test that a duplicate batch gets the first result, even if its messages have expired."""

from __future__ import annotations

import numpy as np

from raymq.client import Message
from raymq.storage.log.retention import Retention
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from tests.unit.actors.bench import Bench, encoded

PRODUCER = "00000000000000ab"


def test_duplicate_of_expired_batch_returns_first_offsets(bench: Bench) -> None:
    """Guard against OffsetOutOfRange as the answer to a stored batch."""
    bodies = [b"%03d" % number + bytes(30_000) for number in range(60)]  # in two files of the log
    records, sizes = encoded(*(Message("t", body) for body in bodies))
    numbered = bytearray(records)
    sizes = stamp(numbered, sizes, ProducerSequence(PRODUCER, 0, 0, len(bodies)))

    def send() -> tuple[list[int], list[int]]:
        placed = bench.core.append("t", 0, memoryview(numbered), np.array(sizes), sequenced=True)
        return placed.queue_offsets.tolist(), placed.physical_offsets.tolist()

    offsets, places = send()
    bench.store.retention = Retention(1, "*")
    for expected in (1, 2):
        bench.clock.advance(2 * 3600)
        for _ in range(40):
            bench.append(Message("t", bytes(30_000)))
        bench.store.flush()
        bench.store._save_checkpoint()
        bench.store.delete_expired(asked=True)
        low = bench.store.min_offset("t", 0)
        assert low > 0 if expected == 1 else low > 60
        assert send() == (
            offsets,
            [place if offset >= low else 0 for offset, place in zip(offsets, places, strict=True)],
        )
