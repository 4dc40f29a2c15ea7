"""Test a stream whose topic was deleted and recreated, after the log of that time has expired."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.wire.commands.stream_plan_commands import QueueBounds, TopicBounds
from raymq.spark_bridge.batch_plan import StreamBroken, next_plan, verify_plan
from raymq.storage.records.record import encode
from raymq.storage.tables import deleted_topics
from tests.unit.actors.bench import CONFIG, Bench

SMALL = dataclasses.replace(CONFIG, commitlog_file_bytes=1 << 16, retention_hours=1e-6)


def send(bench: Bench, topic: str, body: bytes) -> None:
    record = encode(topic, 0, body, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    bench.core.append(topic, 0, memoryview(record), np.array([len(record)], np.int32))


def topic_bounds(bench: Bench) -> dict[tuple[str, str], TopicBounds]:
    bounds = QueueBounds(*bench.core.bounds("t", 0))
    return {("t", "broker-a"): TopicBounds(bench.core.topic("t").topic_id, bench.store.epoch, {0: bounds})}


def expire_all(bench: Bench) -> None:
    end = bench.store.max_physical_offset
    for _ in range(40):
        if bench.store.min_physical_offset >= end:
            return
        for _ in range(60):
            send(bench, "other", b"." * 1000)
        bench.store.flush()
        bench.clock.advance(10)
        bench.elapsed.advance(80 * 3600)
        bench.store.delete_expired(asked=True)
    raise AssertionError("nothing expires")


def test_stream_breaks_on_recreated_topic_after_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against silently skipping the new topic's messages below the stream's offset."""
    monkeypatch.setattr(deleted_topics, "_KEPT_DELETIONS", 0)
    bench = Bench(tmp_path, SMALL)
    for topic in ("t", "other", "x"):
        bench.core.topics.create(topic, 1)
    for _ in range(10):
        send(bench, "t", b"old")
    plan = next_plan(0, None, topic_bounds(bench), None)
    bench.core.topics.delete("t")
    bench.core.topics.create("t", 1)
    expire_all(bench)
    for _ in range(20):
        send(bench, "t", b"new")
    bench.core.topics.delete("x")
    assert bench.store.incarnation("t") == 0, "no record from before the deletion is left"
    assert bench.core.bounds("t", 0) == (0, 20)
    for ask in (lambda: next_plan(1, plan, topic_bounds(bench), None), lambda: verify_plan(plan, topic_bounds(bench))):
        with pytest.raises(StreamBroken, match="recreated"):
            ask()
    bench.crash()
    with pytest.raises(StreamBroken, match="recreated"):
        next_plan(1, plan, topic_bounds(bench), None)


def test_stream_continues_after_expiry_of_all_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SMALL)
    for topic in ("t", "other"):
        bench.core.topics.create(topic, 1)
    for _ in range(10):
        send(bench, "t", b"old")
    plan = next_plan(0, None, topic_bounds(bench), None)
    expire_all(bench)
    bench.core.topics.create("t", 1, exclusive=False)
    send(bench, "t", b"new")
    assert [*next_plan(1, plan, topic_bounds(bench), None).ranges.values()] == [(10, 11)]
