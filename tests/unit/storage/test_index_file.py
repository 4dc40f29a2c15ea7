"""Test single entries in an index file that a crash left ahead of its header."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.log.index_file import IndexFile
from tests.faulty_calls import FaultyCalls

pytestmark = pytest.mark.usefixtures("batch_code")

SLOTS = 9


@pytest.mark.parametrize("alone", [True, False], ids=["one record", "a batch"])
def test_slot_pointing_at_a_reused_entry_is_empty(tmp_path: Path, alone: bool) -> None:
    # The entry's number is reused for the first key; the second key's slot still has it from before the crash.
    file = IndexFile(tmp_path / "1", SLOTS, 100, writable=True)
    file.put_few([1], 10, 1_000, 10)
    file.count = 1  # the header was not written
    if alone:
        file.put_few([5, 1], 20, 2_000, 20)
    else:
        file.put(np.array([5, 1], np.int32), np.array([20, 20]), np.array([2_000, 2_000]), 20)
    entries = np.frombuffer(file._mapped().view, ">i4", 15, 40 + SLOTS * 4).reshape(3, 5)
    assert [list(entries[number, [0, 4]]) for number in (1, 2)] == [[5, 0], [1, 0]], "hash and the one before"
    assert (list(file.find(5)), list(file.find(1))) == ([20], [20])
    del entries
    file.close()


def test_slots_are_allocated_before_a_restore(tmp_path: Path) -> None:
    # Fault 13.12: on a full disk, restoring an index file after a power loss was killed by SIGBUS.
    file = IndexFile(tmp_path / "1", 2_000, 100, writable=True)
    file.put_few([1], 10, 1_000, 10)
    file.sync()
    header = file.header
    file.close()
    content = (tmp_path / "1").read_bytes()
    with (tmp_path / "1").open("r+b") as stream:  # after the loss: slots are a hole, as if never allocated
        stream.truncate(40)
        stream.truncate(len(content))
    file = IndexFile(tmp_path / "1", 2_000, 100, writable=True)
    disk = FaultyCalls("allocate", 1, errno.ENOSPC, lasting=True)
    with replaced(disk), pytest.raises(StoreFull):
        file.restore(header)
    assert (tmp_path / "1").read_bytes()[40:] == bytes(len(content) - 40), "nothing was written through the mapping"
    file.restore(header)
    file.close()
    assert len(content) - 40 <= os.stat(tmp_path / "1").st_blocks * 512
