"""Many delay levels that are behind share a pass, by turns; one whose place was lost delivers nothing twice."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from raymq.client import Message
from tests.unit.actors.bench import Bench, encoded
from tests.unit.actors.timer_bench import CONFIG, HOST, HOUR, TimerBench

A_PASS = 1_000


def test_a_pass_is_as_long_however_many_levels_are_behind(bench: Bench) -> None:
    """18 of them held the loop up for 0.4 s: each had 1,000 messages in one pass."""
    for level in range(1, 5):
        for _ in range(9):
            records, sizes = encoded(*(Message("t", b"%d" % level, delay_level=level) for _ in range(100)))
            bench.core.append("t", 0, memoryview(records), sizes, delayed=True)
    bench.clock.advance(60)
    passes = []
    while (report := bench.core.deliver_due()).delivered:
        passes.append(report.delivered)
        if sum(passes) < 3_600:  # it says that more is due
            assert report.wait_ms is not None
            assert report.wait_ms < 0
    assert (max(passes), sum(passes)) == (A_PASS, 3_600)
    seen = [int(body) for body in bench.bodies("t")]
    assert Counter(seen) == {1: 900, 2: 900, 3: 900, 4: 900}
    assert {*seen[:2_000]} == {1, 2, 3, 4}, "each in its turn"


def test_a_level_whose_place_is_of_before_its_oldest_message_delivers_nothing_again(tmp_path: Path) -> None:
    """A loss of power took the newest places, and retention had let files go meanwhile."""
    bench = TimerBench(tmp_path / "broker-a", replace(CONFIG, delay_levels="1s 5s"))
    kept = tmp_path / "kept"

    def comes(body: bytes) -> None:
        bench.append(Message("t", body, delay_level=1))
        bench.clock.advance(2.0)
        assert bench.deliver() == [body]

    comes(b"first")
    shutil.copytree(bench.directory, kept)
    comes(b"second")
    filler = Message("filler", b"x" * 30_000).encode(1, HOST)
    for _ in range(6):
        bench.store.append(filler, np.array([len(filler)], np.int32))
    bench.clock.advance(2 * HOUR)
    bench.let_go()
    comes(b"third")
    bench.store.close()
    for name in ("raymq/progress.journal", "config/delayOffset.json"):
        (bench.directory / name).unlink(missing_ok=True)
        if (kept / name).exists():
            shutil.copy(kept / name, bench.directory / name)
    bench.open()
    assert bench.deliver() == []
    comes(b"fourth")
    bench.close()
