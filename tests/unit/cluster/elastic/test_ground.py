"""What is written down of a cluster by a change, while somebody starts or joins the cluster beside it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from raymq.cluster import found, layout
from raymq.cluster.elastic.ground import Ground
from raymq.cluster.elastic.steps import WriteDown
from raymq.cluster.layout import Layout
from raymq.cluster.start_lock import alone

BEFORE = Layout({"broker-a": "h1", "broker-b": "h2"}, 1)


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    monkeypatch.setenv(found.HOME, str(tmp_path / "home"))
    layout.save(tmp_path, BEFORE, Layout())
    mq: Any = None  # nothing is asked of the cluster here
    return Ground(mq, "ns")


def test_a_start_that_is_under_way_ends_before_what_it_goes_by_is_changed(ground: Ground, tmp_path: Path) -> None:
    """It has read who there is. Else it would write that down again, or make one anew that has just been ended."""
    after = asyncio.run(ground.layout(tmp_path)).without("broker-b")
    step = WriteDown(after, "broker-b is not to come back")
    change = threading.Thread(target=lambda: asyncio.run(ground.note(tmp_path, step)))
    with alone("ns"):
        known = layout.load(tmp_path)
        change.start()
        change.join(0.5)
        assert change.is_alive(), "it waits"
        layout.save(tmp_path, known, Layout())
    change.join(20)
    assert not change.is_alive()
    assert layout.load(tmp_path) == after


def test_what_another_change_has_written_down_meanwhile_stays(ground: Ground, tmp_path: Path) -> None:
    seen = asyncio.run(ground.layout(tmp_path))
    other = BEFORE.with_change("broker-a", {"verb": "move"})
    layout.save(tmp_path, other, BEFORE)
    asyncio.run(ground.note(tmp_path, WriteDown(seen.without("broker-b"), "broker-b is not to come back")))
    assert layout.load(tmp_path) == other
