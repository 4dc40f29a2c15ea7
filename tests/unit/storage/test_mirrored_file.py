"""Test that a flipped bit in a mirrored file changes no decision, or is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from raymq.storage.tables.coordinator_table import CoordinatorTable
from raymq.storage.tables.mirrored_file import decode_mirrored, kept_twice
from raymq.storage.tables.staged_records import CommitDecision, StagedRecords
from raymq.storage.tables.stream_plan_store import StreamPlanStore
from raymq.storage.tables.write_transactions import SeriesCommit, WriteState, WriteTransaction, WriteTransactionStore

RECORD = WriteTransaction("tx", "t", WriteState.COMMITTED, 5.0, "s", 3, {"a": {"p1": 100, "p2": 200}})
COMMIT = CommitDecision(("p1", "p2"), {("t", 0): 17}, 4096, {"t": "id"}, None, 300, 0)
#: The file, and the function that reads it.
Kept = tuple[Path, Callable[[], Any]]


def write(root: Path) -> Kept:
    WriteTransactionStore(root).put(RECORD)
    return root / "raymq" / "writes" / "tx", lambda: WriteTransactionStore(root).read("tx")


def series(root: Path) -> Kept:
    WriteTransactionStore(root).put_series_commit(SeriesCommit("s", 7, "tx", 300))
    [path] = (root / "raymq" / "series").iterdir()
    return path, lambda: WriteTransactionStore(root).end("s")


def plans(root: Path) -> Kept:
    StreamPlanStore(root).put("stream", "query", 1, b"a plan")
    path = root / "raymq" / "streams" / "stream" / "query"
    return path, lambda: StreamPlanStore(root).kept("stream", "query")


def coordinator(root: Path) -> Kept:
    CoordinatorTable(root).remember("sink", "key", "broker-a")
    [path] = (root / "raymq" / "homes").iterdir()
    return path, lambda: CoordinatorTable(root).find("sink", "key")


def commit(root: Path) -> Kept:
    StagedRecords(root).decide("tx", COMMIT)
    return root / "raymq" / "staged" / "tx" / "commit", lambda: StagedRecords(root).decided("tx")


def coordinator_of_rows(root: Path) -> Kept:
    StagedRecords(root).add("tx", "part", 0, ("t", 0), b"", np.empty(0, np.int32), home="broker-a")
    return root / "raymq" / "staged" / "tx" / "home", lambda: StagedRecords(root).home_of("tx")


@pytest.mark.parametrize("keep", [write, series, plans, coordinator, commit, coordinator_of_rows])
def test_flipped_bit_in_a_mirrored_file_is_ignored(tmp_path: Path, keep: Callable[[Path], Kept]) -> None:
    path, read = keep(tmp_path)
    content, expected = path.read_bytes(), read()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert read() == expected


def test_latest_query_is_read_from_files_of_older_versions(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    plans.put("stream", "older", 1, b"a plan")
    plans.put("stream", "newer", 1, b"a plan")
    assert StreamPlanStore(tmp_path).latest_query("stream") == "newer"
    (tmp_path / "raymq" / "streams" / "stream" / "older").write_bytes(msgpack.packb([9, [[1, b"of an older version"]]]))
    assert StreamPlanStore(tmp_path).latest_query("stream") == "older"


def test_transaction_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    assert decode_mirrored(msgpack.packb(["t", 1]), tmp_path) == ["t", 1]
    path, read = write(tmp_path)
    [value] = decode_mirrored(path.read_bytes(), path)
    path.write_bytes(msgpack.packb(value))
    assert read() == RECORD


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
