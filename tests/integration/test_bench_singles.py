"""Test `make bench-compare ARGS=singles`, which runs the brokers and clients of two trees side by side."""

from __future__ import annotations

import pytest

from tests.bench import live_sides
from tests.bench.compare import TREE, compared

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_each_kind_and_size_is_measured_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sides, "TURN", 20)
    monkeypatch.setattr(live_sides, "WARMING", 20)
    found = live_sides.rows({"before": TREE, "now": TREE}, 3)
    reports = [each.told() for each in compared(found["before"], found["now"])]
    assert [(each["name"], each["rounds"]) for each in reports] == [
        (f"{kind}, {size} B", [3, 3]) for kind in live_sides.KINDS for size in live_sides.SIZES
    ]
    assert all(min(each["best"]) > 0 for each in reports)
