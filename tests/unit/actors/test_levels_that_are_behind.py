"""Many delay levels that are behind share a pass, by turns."""

from __future__ import annotations

from collections import Counter

from raymq.client import Message
from tests.unit.actors.bench import Bench, encoded

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
