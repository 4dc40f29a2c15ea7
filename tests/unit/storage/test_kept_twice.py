"""A bit that flips in a file that decides about staged writes, streams and homes changes nothing, or is told."""

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
#: The file, and what is read of it.
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


def home(root: Path) -> Kept:
    CoordinatorTable(root).remember("sink", "key", "broker-a")
    [path] = (root / "raymq" / "homes").iterdir()
    return path, lambda: CoordinatorTable(root).find("sink", "key")


def commit(root: Path) -> Kept:
    StagedRecords(root).decide("tx", COMMIT)
    return root / "raymq" / "staged" / "tx" / "commit", lambda: StagedRecords(root).decided("tx")


def home_of_rows(root: Path) -> Kept:
    StagedRecords(root).add("tx", "part", 0, ("t", 0), b"", np.empty(0, np.int32), home="broker-a")
    return root / "raymq" / "staged" / "tx" / "home", lambda: StagedRecords(root).home_of("tx")


@pytest.mark.parametrize("keep", [write, series, plans, home, commit, home_of_rows])
def test_no_bit_that_flips_is_believed(tmp_path: Path, keep: Callable[[Path], Kept]) -> None:
    path, read = keep(tmp_path)
    content, expected = path.read_bytes(), read()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert read() == expected


def test_the_turn_of_a_stream_is_read_as_before(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    plans.put("stream", "older", 1, b"a plan")
    plans.put("stream", "newer", 1, b"a plan")
    assert StreamPlanStore(tmp_path).latest_query("stream") == "newer"
    (tmp_path / "raymq" / "streams" / "stream" / "older").write_bytes(msgpack.packb([9, [[1, b"of an older version"]]]))
    assert StreamPlanStore(tmp_path).latest_query("stream") == "older"


def test_what_an_older_version_kept_is_read(tmp_path: Path) -> None:
    assert decode_mirrored(msgpack.packb(["t", 1]), tmp_path) == ["t", 1]
    path, read = write(tmp_path)
    [told] = decode_mirrored(path.read_bytes(), path)
    path.write_bytes(msgpack.packb(told))
    assert read() == RECORD


def test_the_home_that_an_older_version_kept_is_read(tmp_path: Path) -> None:
    path, read = home_of_rows(tmp_path)
    path.write_bytes(b"broker-b")
    assert read() == "broker-b"


def test_two_damages_are_told(tmp_path: Path) -> None:
    content = bytearray(kept_twice(["value"]))
    content[9] ^= 1
    content[-1] ^= 1
    with pytest.raises(ValueError, match="extra data"):
        decode_mirrored(bytes(content), tmp_path)
