"""Test that late delay levels share a pass by turns, and repeat nothing after a lost position."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from raymq.client import Message
from tests.unit.actors.bench import Bench, encoded
from tests.unit.actors.timer_bench import CONFIG, HOST, HOUR, TimerBench

PASS_MESSAGES = 1_000


def test_delivery_pass_is_bounded_over_all_delay_levels(bench: Bench) -> None:
    """Bound a pass: 18 levels with 1,000 messages each blocked the loop for 0.4 s."""
    for level in range(1, 5):
        for _ in range(9):
            records, sizes = encoded(*(Message("t", b"%d" % level, delay_level=level) for _ in range(100)))
            bench.core.append("t", 0, memoryview(records), sizes, delayed=True)
    bench.clock.advance(60)
    passes = []
    while (report := bench.core.deliver_due()).delivered:
        passes.append(report.delivered)
        if sum(passes) < 3_600:  # the report says that more is due
            assert report.wait_ms is not None
            assert report.wait_ms < 0
    assert (max(passes), sum(passes)) == (PASS_MESSAGES, 3_600)
    seen = [int(body) for body in bench.bodies("t")]
    assert Counter(seen) == {1: 900, 2: 900, 3: 900, 4: 900}
    assert {*seen[:2_000]} == {1, 2, 3, 4}, "each in its turn"


def test_delay_level_with_old_position_delivers_nothing_twice(tmp_path: Path) -> None:
    """Lose the newest positions by a power loss, after retention removed files."""
    bench = TimerBench(tmp_path / "broker-a", replace(CONFIG, delay_levels="1s 5s"))
    kept = tmp_path / "kept"

    def check_delivery(body: bytes) -> None:
        bench.append(Message("t", body, delay_level=1))
        bench.clock.advance(2.0)
        assert bench.deliver() == [body]

    check_delivery(b"first")
    shutil.copytree(bench.directory, kept)
    check_delivery(b"second")
    filler = Message("filler", b"x" * 30_000).encode(1, HOST)
    for _ in range(6):
        bench.store.append(filler, np.array([len(filler)], np.int32))
    bench.clock.advance(2 * HOUR)
    bench.let_go()
    check_delivery(b"third")
    bench.store.close()
    for name in ("raymq/state", "config"):
        shutil.rmtree(bench.directory / name)
        if (kept / name).exists():
            shutil.copytree(kept / name, bench.directory / name)
    bench.open()
    assert bench.deliver() == []
    check_delivery(b"fourth")
    bench.close()
