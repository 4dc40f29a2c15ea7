"""What is written down of a cluster by a change, while somebody starts or joins the cluster beside it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from raymq.cluster import cluster_file, cluster_layout
from raymq.cluster.cluster_layout import ClusterLayout
from raymq.cluster.cluster_lock import cluster_lock
from raymq.cluster.elastic.change_steps import SaveLayout
from raymq.cluster.elastic.cluster_client import ClusterClient

BEFORE = ClusterLayout({"broker-a": "h1", "broker-b": "h2"}, 1)


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterClient:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))
    cluster_layout.save(tmp_path, BEFORE, ClusterLayout())
    mq: Any = None  # nothing is asked of the cluster here
    return ClusterClient(mq, "ns")


def test_a_start_that_is_under_way_ends_before_what_it_goes_by_is_changed(
    ground: ClusterClient, tmp_path: Path
) -> None:
    """It has read who there is. Else it would write that down again, or make one anew that has just been ended."""
    after = asyncio.run(ground.layout(tmp_path)).without("broker-b")
    step = SaveLayout(after, "broker-b is removed for good")
    change = threading.Thread(target=lambda: asyncio.run(ground.save_layout(tmp_path, step)))
    with cluster_lock("ns"):
        known = cluster_layout.load(tmp_path)
        change.start()
        change.join(0.5)
        assert change.is_alive(), "it waits"
        cluster_layout.save(tmp_path, known, ClusterLayout())
    change.join(20)
    assert not change.is_alive()
    assert cluster_layout.load(tmp_path) == after


def test_what_another_change_has_written_down_meanwhile_stays(ground: ClusterClient, tmp_path: Path) -> None:
    seen = asyncio.run(ground.layout(tmp_path))
    other = BEFORE.with_change("broker-a", {"verb": "move"})
    cluster_layout.save(tmp_path, other, BEFORE)
    asyncio.run(ground.save_layout(tmp_path, SaveLayout(seen.without("broker-b"), "broker-b is removed for good")))
    assert cluster_layout.load(tmp_path) == other
