"""Test the record of completed batches that Spark's query listener fills."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from raymq.spark_bridge import topic_stream
from raymq.spark_bridge.topic_stream import CompletedBatches


@pytest.fixture
def batches() -> CompletedBatches:
    session: Any = SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None))
    return CompletedBatches(session)


def progress(query: str, batch: int) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(id=query, batchId=batch, batchDuration=7))


def test_last_completed_is_the_highest_recorded_batch(batches: CompletedBatches) -> None:
    assert batches.last_completed("q") == -1
    batches.onQueryProgress(progress("q", 3))
    batches.record("q", 5)
    batches.onQueryProgress(progress("q", 4))  # Spark's call comes late
    assert (batches.last_completed("q"), batches.last_completed("other")) == (5, -1)


def test_least_recent_queries_are_dropped_beyond_the_limit(
    batches: CompletedBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_stream, "_MAX_QUERIES", 2)
    for query in "abac":
        batches.record(query, 1)
    assert [query for query in "abc" if batches.last_completed(query) == 1] == ["a", "c"]


def test_query_end_is_logged_below_warning_level(batches: CompletedBatches, caplog: pytest.LogCaptureFixture) -> None:
    # The program gets a query's error where it waits for the query; a query stopped within a batch has one, too.
    with caplog.at_level(logging.DEBUG):
        batches.onQueryStarted(SimpleNamespace(id="q"))  # type: ignore[arg-type]
        batches.onQueryProgress(progress("q", 0))
        for exception in (None, "org.apache.spark.SparkException: boom"):
            batches.onQueryTerminated(SimpleNamespace(id="q", exception=exception))  # type: ignore[arg-type]
    assert len(caplog.records) == 4
    assert all(record.levelno < logging.WARNING for record in caplog.records)
    assert "boom" in caplog.text
