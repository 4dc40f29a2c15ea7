"""Test the search for a queue file's end, and how little of the file it reads."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.storage.log.queue_end import ENTRY, PROBE_ENTRIES, first_empty

COUNT = 300_000


class File:
    """Fake a file of so many entries, and record its reads."""

    def __init__(self, written: int, count: int) -> None:
        entries = np.zeros(count, ENTRY)
        entries["size"][:written] = 100
        self.entries = entries
        self.reads: list[tuple[int, int]] = []

    def read(self, at: int, length: int) -> bytes:
        self.reads.append((at, length))
        return self.entries.tobytes()[at : at + length]


@pytest.mark.parametrize(
    ("written", "count", "reads"),
    [
        (0, COUNT, 1),
        (1, COUNT, 1),
        (PROBE_ENTRIES - 1, COUNT, 1),
        (PROBE_ENTRIES, COUNT, 3),
        (PROBE_ENTRIES + 1, COUNT, 3),
        (2 * PROBE_ENTRIES, COUNT, 3),
        (2 * PROBE_ENTRIES + 1, COUNT, 5),
        (628, COUNT, 5),
        (5_000, COUNT, 12),
        (COUNT - 1, COUNT, 24),
        (COUNT, COUNT, 24),
        (16, 16, 1),
        (7, 16, 1),
        (PROBE_ENTRIES, PROBE_ENTRIES, 1),
        (PROBE_ENTRIES + 30, PROBE_ENTRIES + 31, 2),
    ],
)
def test_first_empty_entry_is_found_with_few_reads(written: int, count: int, reads: int) -> None:
    file = File(written, count)
    assert first_empty(file.read, count) == written
    assert len(file.reads) <= reads
    assert all(length <= PROBE_ENTRIES * ENTRY.itemsize for _, length in file.reads)


def test_hole_in_the_first_page_ends_a_queue() -> None:
    file = File(5_000, COUNT)
    file.entries["size"][7] = 0
    assert first_empty(file.read, COUNT) == 7
