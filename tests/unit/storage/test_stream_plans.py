"""Test plans of streams: the first plan of a batch is kept over restarts, within bounds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables import stream_plan_store
from raymq.storage.tables.stream_plan_store import MAX_PLAN_BYTES, StreamPlanStore
from tests.full_disk import FullDisk
from tests.state_journals import open_table


def test_first_plan_of_a_batch_is_kept_over_restarts(tmp_path: Path) -> None:
    plans = open_table(tmp_path, StreamPlanStore())
    assert plans.kept("agg", "q1") == []
    assert plans.put("agg", "q1", 0, b"first") == b"first"
    assert plans.put("agg", "q1", 0, b"second") == b"first"
    again = open_table(tmp_path, StreamPlanStore())
    assert again.put("agg", "q1", 0, b"third") == b"first"
    assert again.kept("agg", "q1") == [(0, b"first")]


def test_concurrent_planners_of_a_batch_get_the_same_plan(tmp_path: Path) -> None:
    plans = open_table(tmp_path, StreamPlanStore())
    with ThreadPoolExecutor(8) as threads:
        standing = list(threads.map(lambda number: plans.put("agg", "q", 3, b"%d" % number), range(32)))
    assert len(set(standing)) == 1


def test_last_two_batches_are_kept_and_older_ones_refused(tmp_path: Path) -> None:
    # Batches without data are not planned, so that batch numbers have gaps.
    plans = open_table(tmp_path, StreamPlanStore())
    for batch in (0, 1, 5):
        plans.put("agg", "q", batch, b"plan %d" % batch)
    assert plans.kept("agg", "q") == [(1, b"plan 1"), (5, b"plan 5")]
    assert plans.put("agg", "q", 1, b"other") == b"plan 1"
    for older in (0, 4):
        with pytest.raises(InvalidInput, match="batch"):
            plans.put("agg", "q", older, b"late")
    assert plans.kept("agg", "q") == [(1, b"plan 1"), (5, b"plan 5")]


def test_queries_of_one_stream_are_independent(tmp_path: Path) -> None:
    plans = open_table(tmp_path, StreamPlanStore())
    plans.put("agg", "q1", 7, b"a")
    plans.put("agg", "q2", 0, b"b")
    plans.put("other", "q1", 0, b"c")
    assert (plans.kept("agg", "q1"), plans.kept("agg", "q2")) == ([(7, b"a")], [(0, b"b")])
    assert plans.kept("other", "q1") == [(0, b"c")]


def test_latest_planned_query_is_found(tmp_path: Path) -> None:
    plans = open_table(tmp_path, StreamPlanStore())
    assert plans.latest_query("agg") is None
    for query in ("q3", "q1", "q2"):
        plans.put("agg", query, 0, b"")
    assert plans.latest_query("agg") == "q2"
    again = open_table(tmp_path, StreamPlanStore())
    assert again.latest_query("agg") == "q2"
    again.put("agg", "q3", 1, b"")
    assert again.latest_query("agg") == "q3"


@pytest.mark.parametrize("restarts", [False, True])
def test_last_planned_queries_and_streams_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    monkeypatch.setattr(stream_plan_store, "MAX_QUERIES", 3)
    monkeypatch.setattr(stream_plan_store, "MAX_STREAMS", 2)
    plans = open_table(tmp_path, StreamPlanStore())

    def later() -> StreamPlanStore:
        return open_table(tmp_path, StreamPlanStore()) if restarts else plans

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


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 65, "ä", "a.tmp", "a b"])
def test_invalid_name_of_stream_or_query_is_refused(tmp_path: Path, name: str) -> None:
    plans = open_table(tmp_path, StreamPlanStore())
    for call in (
        lambda: plans.put(name, "q", 0, b""),
        lambda: plans.put("s", name, 0, b""),
        lambda: plans.kept(name, "q"),
        lambda: plans.kept("s", name),
        lambda: plans.latest_query(name),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert not list(plans.snapshot())


def test_invalid_batch_number_and_long_plan_are_refused(tmp_path: Path) -> None:
    plans = open_table(tmp_path, StreamPlanStore())
    for batch in (-1, 1 << 63):
        with pytest.raises(InvalidInput, match="batch"):
            plans.put("s", "q", batch, b"")
    with pytest.raises(InvalidInput, match="plan"):
        plans.put("s", "q", 0, bytes(MAX_PLAN_BYTES + 1))
    assert plans.kept("s", "q") == []


def test_full_disk_refuses_a_plan_and_keeps_the_others(tmp_path: Path) -> None:
    plans = open_table(tmp_path, StreamPlanStore())
    plans.put("s", "q", 0, b"first")
    with replaced(FullDisk(0)), pytest.raises(StoreFull):
        plans.put("s", "q", 1, b"second")
    assert plans.kept("s", "q") == [(0, b"first")]
    assert plans.put("s", "q", 1, b"third") == b"third"
    assert open_table(tmp_path, StreamPlanStore()).kept("s", "q") == [(0, b"first"), (1, b"third")]
