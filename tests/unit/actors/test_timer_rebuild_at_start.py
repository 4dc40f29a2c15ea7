"""Test that a start rebuilds the entries of many timers in steps, before any delivery."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from tests.unit.actors.bench import CONFIG, Bench, encoded

COUNT = 9_000
STEP_ENTRIES = 4_096


def open_without_timer_files(root: Path) -> tuple[Bench, Message]:
    """Open a broker without timer files, with many due messages and a late recall."""
    bench = Bench(root, replace(CONFIG, commitlog_file_bytes=8 << 20, consume_queue_file_entries=20_000))
    bench.core.topics.create("t", 1)
    withdrawn = Message("t", b"withdrawn", deliver_at=bench.clock.now + 60)
    bench.append(withdrawn, delayed=True)
    waiting = [Message("t", b"%d" % number, deliver_at=bench.clock.now + 60) for number in range(100)]
    records, sizes = encoded(*waiting)
    bench.core.append("t", 0, memoryview(records), sizes, delayed=True)
    with bench.store.read(TIMER_TOPIC, 0, 1, 100) as lease:
        copies, sizes = bytes(lease.records), np.array(lease.sizes)
    for _ in range(COUNT // 100 - 1):
        bench.store.append(copies, sizes)
    assert run_steps(bench.core.recalls.recall_steps(handle_of(bench, withdrawn))) is RecallStatus.WITHDRAWN
    bench.store._flusher.stop()
    bench.store._abandon()
    shutil.rmtree(root / "raymq" / "timers")
    bench.open()
    bench.clock.advance(61)
    return bench, withdrawn


def handle_of(bench: Bench, message: Message) -> RecallHandle:
    assert message.deliver_at is not None
    return RecallHandle("t", "broker-a", int(message.deliver_at * 1000), message.unique_key)


def test_timers_are_rebuilt_in_steps_before_delivery(tmp_path: Path) -> None:
    """Guard against one stop of 6 us for each of millions of timers."""
    bench, _ = open_without_timer_files(tmp_path)
    timers, known = bench.core.timers, 0
    while known < COUNT:
        report = bench.core.deliver_due()
        assert known < timers.log.enqueued <= known + STEP_ENTRIES
        known = timers.log.enqueued
        if known < COUNT:
            assert report.delivered == 0
            assert report.wait_ms is not None
            assert report.wait_ms <= 0
    while bench.core.deliver_due().delivered:
        pass
    bodies = bench.bodies("t")
    assert b"withdrawn" not in bodies
    assert len(bodies) == COUNT
    bench.store.close()


def test_recall_waits_for_rebuild(tmp_path: Path) -> None:
    bench, withdrawn = open_without_timer_files(tmp_path)
    steps = bench.core.recalls.recall_steps(handle_of(bench, withdrawn))
    assert next(steps) is None
    assert run_steps(steps) is RecallStatus.WITHDRAWN
    bench.store.close()


def test_interrupted_rebuild_continues_at_checkpoint(tmp_path: Path) -> None:
    bench, _ = open_without_timer_files(tmp_path)
    bench.core.timers.index_new_records()
    write = bench.core.timers.checkpoint()
    assert write is not None
    write()
    known = bench.core.timers.log.enqueued
    assert STEP_ENTRIES <= known <= 2 * STEP_ENTRIES
    bench.crash()
    assert bench.core.timers.log.enqueued == known
    while not bench.core.timers.index_new_records():
        pass
    while bench.core.deliver_due().delivered:
        pass
    assert bench.store.max_offset("t", 0) == COUNT
    bench.store.close()
