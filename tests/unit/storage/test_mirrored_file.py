"""Test that a flipped bit in a mirrored file changes no decision, or is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from raymq.storage.tables.mirrored_file import decode_mirrored, kept_twice
from raymq.storage.tables.staged_records import CommitDecision, StagedRecords

COMMIT = CommitDecision(("p1", "p2"), {("t", 0): 17}, 4096, {"t": "id"}, None, 300, 0)
#: The file, and the function that reads it.
Kept = tuple[Path, Callable[[], Any]]


def commit(root: Path) -> Kept:
    StagedRecords(root).decide("tx", COMMIT)
    return root / "raymq" / "staged" / "tx" / "commit", lambda: StagedRecords(root).decided("tx")


def coordinator_of_rows(root: Path) -> Kept:
    StagedRecords(root).add("tx", "part", 0, ("t", 0), b"", np.empty(0, np.int32), home="broker-a")
    return root / "raymq" / "staged" / "tx" / "home", lambda: StagedRecords(root).home_of("tx")


@pytest.mark.parametrize("keep", [commit, coordinator_of_rows])
def test_flipped_bit_in_a_mirrored_file_is_ignored(tmp_path: Path, keep: Callable[[Path], Kept]) -> None:
    path, read = keep(tmp_path)
    content, expected = path.read_bytes(), read()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert read() == expected


def test_mirrored_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    assert decode_mirrored(msgpack.packb(["t", 1]), tmp_path) == ["t", 1]


def test_coordinator_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    path, read = coordinator_of_rows(tmp_path)
    path.write_bytes(b"broker-b")
    assert read() == "broker-b"


def test_two_damaged_copies_raise_an_error(tmp_path: Path) -> None:
    content = bytearray(kept_twice(["value"]))
    content[9] ^= 1
    content[-1] ^= 1
    with pytest.raises(ValueError, match="extra data"):
        decode_mirrored(bytes(content), tmp_path)
