"""Test that delayed records are checked like others: for size, soundness and queue."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from raymq.actors.errors import InvalidInput
from raymq.client import Message
from raymq.storage.records.record import OFFSET_QUEUE_ID
from tests.unit.actors.bench import Bench, encoded

WAITS = {"a level": {"delay_level": 3}, "a time": {"deliver_at": 1_700_000_100.0}}


def assert_refused(bench: Bench, records: bytes, sizes: list[int]) -> None:
    end = bench.store.max_physical_offset
    with pytest.raises(InvalidInput):
        bench.core.append("t", 0, memoryview(records), np.array(sizes, np.int32), delayed=True)
    assert bench.store.max_physical_offset == end


@pytest.mark.parametrize("wait", WAITS)
def test_wrong_record_sizes_raise_invalid_input(bench: Bench, wait: str) -> None:
    """Guard against 2,000 sizes of zero that made 2,000 copies of one record.

    The copies took seconds of the event loop, and gigabytes.
    """
    records, sizes = encoded(*(Message("t", b"x" * 100, **WAITS[wait]) for _ in range(3)))  # type: ignore[arg-type]
    one = int(sizes[0])
    tracemalloc.start()
    for wrong in (
        [0] * 2_000,
        [0, *sizes.tolist()],
        [3 * one],
        [-one, one, one, one, one],
        [one, one],
        [one, one, one, 0],
        [one - 1, one + 1, one],
        [],
    ):
        assert_refused(bench, records, wrong)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert_refused(bench, records[:one], [0])
    assert_refused(bench, records[:one], [one - 1])
    placed = bench.core.append("t", 0, memoryview(records), sizes, delayed=True)
    assert len(placed.queue_offsets) == 3


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("count", [1, 2])
def test_damaged_or_misplaced_records_raise_invalid_input(bench: Bench, wait: str, count: int) -> None:
    records, sizes = encoded(*(Message("t", b"x" * 100, **WAITS[wait]) for _ in range(count)))  # type: ignore[arg-type]
    last = int(sizes[:-1].sum())
    damaged, elsewhere, cut = bytearray(records), bytearray(records), bytearray(records)
    damaged[last + 100] ^= 1
    elsewhere[last + OFFSET_QUEUE_ID + 3] = 1
    cut[last : last + 4] = (1 << 20).to_bytes(4, "big")
    for wrong in (damaged, elsewhere, cut, bytearray(b"\0" * len(records))):
        assert_refused(bench, bytes(wrong), sizes.tolist())
