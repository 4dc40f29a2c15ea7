"""Test saving the cluster layout while another process starts or changes the cluster."""

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
def cluster_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterClient:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path / "home"))
    cluster_layout.save(tmp_path, BEFORE, ClusterLayout())
    mq: Any = None  # no request is sent to the cluster
    return ClusterClient(mq, "ns")


def test_layout_change_waits_for_a_running_start(cluster_client: ClusterClient, tmp_path: Path) -> None:
    """A start that has read the old layout might save it or restart stopped actors."""
    after = asyncio.run(cluster_client.layout(tmp_path)).without("broker-b")
    step = SaveLayout(after, "broker-b is removed for good")
    change = threading.Thread(target=lambda: asyncio.run(cluster_client.save_layout(tmp_path, step)))
    with cluster_lock("ns"):
        known = cluster_layout.load(tmp_path)
        change.start()
        change.join(0.5)
        assert change.is_alive(), "it waits"
        cluster_layout.save(tmp_path, known, ClusterLayout())
    change.join(20)
    assert not change.is_alive()
    assert cluster_layout.load(tmp_path) == after


def test_stale_layout_change_does_not_overwrite_another(cluster_client: ClusterClient, tmp_path: Path) -> None:
    seen = asyncio.run(cluster_client.layout(tmp_path))
    other = BEFORE.with_change("broker-a", {"verb": "move"})
    cluster_layout.save(tmp_path, other, BEFORE)
    asyncio.run(
        cluster_client.save_layout(tmp_path, SaveLayout(seen.without("broker-b"), "broker-b is removed for good"))
    )
    assert cluster_layout.load(tmp_path) == other
