"""Test plans of streams: the first plan of a batch is kept over restarts, within bounds."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables import stream_plan_store
from raymq.storage.tables.stream_plan_store import MAX_PLAN_BYTES, StreamPlanStore
from tests.full_disk import FullDisk


def test_first_plan_of_a_batch_is_kept_over_restarts(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    assert plans.kept("agg", "q1") == []
    assert plans.put("agg", "q1", 0, b"first") == b"first"
    assert plans.put("agg", "q1", 0, b"second") == b"first"
    again = StreamPlanStore(tmp_path)
    assert again.put("agg", "q1", 0, b"third") == b"first"
    assert again.kept("agg", "q1") == [(0, b"first")]


def test_concurrent_planners_of_a_batch_get_the_same_plan(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        standing = list(threads.map(lambda number: plans.put("agg", "q", 3, b"%d" % number), range(32)))
    assert len(set(standing)) == 1


def test_last_two_batches_are_kept_and_older_ones_refused(tmp_path: Path) -> None:
    # Batches without data are not planned, so that batch numbers have gaps.
    plans = StreamPlanStore(tmp_path)
    for batch in (0, 1, 5):
        plans.put("agg", "q", batch, b"plan %d" % batch)
    assert plans.kept("agg", "q") == [(1, b"plan 1"), (5, b"plan 5")]
    assert plans.put("agg", "q", 1, b"other") == b"plan 1"
    for older in (0, 4):
        with pytest.raises(InvalidInput, match="batch"):
            plans.put("agg", "q", older, b"late")
    assert plans.kept("agg", "q") == [(1, b"plan 1"), (5, b"plan 5")]


def test_queries_of_one_stream_are_independent(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    plans.put("agg", "q1", 7, b"a")
    plans.put("agg", "q2", 0, b"b")
    plans.put("other", "q1", 0, b"c")
    assert (plans.kept("agg", "q1"), plans.kept("agg", "q2")) == ([(7, b"a")], [(0, b"b")])
    assert plans.kept("other", "q1") == [(0, b"c")]


def shift_file_times(tmp_path: Path, seconds: int) -> None:
    """Set file times as if the clock had been so far ahead or behind."""
    for path in (tmp_path / "raymq" / "streams").rglob("*"):
        os.utime(path, (time.time() + seconds,) * 2)


def test_latest_planned_query_is_found(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    assert plans.latest_query("agg") is None
    for query in ("q3", "q1", "q2"):
        plans.put("agg", query, 0, b"")
    assert plans.latest_query("agg") == "q2"
    (tmp_path / "raymq" / "streams" / "agg" / "q1.tmp").write_bytes(b"a death left it")
    assert plans.latest_query("agg") == "q2"
    again = StreamPlanStore(tmp_path)
    assert again.latest_query("agg") == "q2"
    again.put("agg", "q3", 1, b"")
    assert again.latest_query("agg") == "q3"


@pytest.mark.parametrize("seconds", [3_600, -3_600])
@pytest.mark.parametrize("restarts", [False, True])
def test_last_planned_queries_are_kept_despite_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, restarts: bool
) -> None:
    # A clock an hour ahead used to make the running query's plans the oldest: the next query removed them.
    monkeypatch.setattr(stream_plan_store, "MAX_QUERIES", 3)
    monkeypatch.setattr(stream_plan_store, "MAX_STREAMS", 2)
    plans = StreamPlanStore(tmp_path)

    def later() -> StreamPlanStore:
        shift_file_times(tmp_path, seconds)
        return StreamPlanStore(tmp_path) if restarts else plans

    for query in "abc":
        plans.put("s1", query, 0, b"")
    plans = later()
    plans.put("s1", "a", 1, b"")
    assert plans.latest_query("s1") == "a"
    plans = later()
    plans.put("s1", "d", 0, b"")
    assert [query for query in "abcd" if plans.kept("s1", query)] == ["a", "c", "d"]
    plans.put("s2", "a", 0, b"")
    plans = later()
    plans.put("s1", "a", 2, b"")
    plans = later()
    plans.put("s3", "a", 0, b"")
    assert [stream for stream in ("s1", "s2", "s3") if plans.kept(stream, "a")] == ["s1", "s3"]
    plans = later()
    plans.put("s1", "a", 3, b"")
    plans.put("s2", "a", 0, b"")
    assert [stream for stream in ("s1", "s2", "s3") if plans.kept(stream, "a")] == ["s1", "s2"]


def test_unreadable_plans_are_removed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_plan_store, "MAX_QUERIES", 3)
    for content in (b"", b"\x90", b"\xc1", b"\x92\xa1x\x90", b"\x92"):
        plans = StreamPlanStore(tmp_path)
        for query in "abc":
            plans.put("s", query, 0, b"")
        (tmp_path / "raymq" / "streams" / "s" / "b").write_bytes(content)
        assert plans.latest_query("s") == "c"
        plans = StreamPlanStore(tmp_path)
        plans.put("s", "d", 0, b"")
        assert [query for query in "abcd" if plans.kept("s", query)] == ["a", "c", "d"]
        shutil.rmtree(tmp_path / "raymq")


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 65, "ä", "a.tmp", "a b"])
def test_name_unfit_for_a_file_is_refused(tmp_path: Path, name: str) -> None:
    plans = StreamPlanStore(tmp_path)
    for call in (
        lambda: plans.put(name, "q", 0, b""),
        lambda: plans.put("s", name, 0, b""),
        lambda: plans.kept(name, "q"),
        lambda: plans.kept("s", name),
        lambda: plans.latest_query(name),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert not (tmp_path / "raymq").exists()


def test_invalid_batch_number_and_long_plan_are_refused(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    for batch in (-1, 1 << 63):
        with pytest.raises(InvalidInput, match="batch"):
            plans.put("s", "q", batch, b"")
    with pytest.raises(InvalidInput, match="plan"):
        plans.put("s", "q", 0, bytes(MAX_PLAN_BYTES + 1))
    assert plans.kept("s", "q") == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x92\x01\x90",
        b"\x92\x01\x91\x92\xa1x\xc4\x00",
        b"\xc1",
        b"\x92\x01\x91\x91\x00",
        b"\x92\xc0\x91\x92\x00\xc4\x00",
    ],
)
def test_damaged_plan_file_raises_store_corrupt(tmp_path: Path, content: bytes) -> None:
    # Without plans the query would restart from its beginning.
    plans = StreamPlanStore(tmp_path)
    plans.put("s", "q", 0, b"plan")
    (tmp_path / "raymq" / "streams" / "s" / "q").write_bytes(content)
    with pytest.raises(StoreCorrupt):
        plans.kept("s", "q")
    with pytest.raises(StoreCorrupt):
        plans.put("s", "q", 0, b"other")


def test_full_disk_refuses_a_plan_and_keeps_the_others(tmp_path: Path) -> None:
    plans = StreamPlanStore(tmp_path)
    plans.put("s", "q", 0, b"first")
    with replaced(FullDisk(0)), pytest.raises(StoreFull):
        plans.put("s", "q", 1, b"second")
    assert plans.kept("s", "q") == [(0, b"first")]
    assert plans.put("s", "q", 1, b"third") == b"third"
    assert StreamPlanStore(tmp_path).kept("s", "q") == [(0, b"first"), (1, b"third")]
