"""Test the metrics of brokers on the port of Ray's own metrics, and the names of RayMQ's actors in Ray."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
import ray

from raymq import cluster
from raymq.client import Admin, Message, Producer
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(120)]


def scrape() -> str:
    """Return what Ray exports on this machine."""
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_ray_exports_metrics_of_brokers(tmp_path: Path) -> None:
    with cluster.start(brokers=1, root=tmp_path, namespace="metrics") as mq:
        Admin(mq).create_topic("t", queues=1)
        with Producer(mq, "p") as producer:
            producer.send_batch([Message("t", b"x") for _ in range(7)])

        def is_exported() -> bool:
            lines = [line for line in scrape().splitlines() if 'node_id="broker-a"' in line]
            stored = [line for line in lines if line.startswith("ray_raymq_messages_in_total{") and 'topic="t"' in line]
            return (
                bool(stored)
                and stored[0].endswith(" 7.0")
                and any(line.startswith("ray_raymq_disk_ratio{") for line in lines)
                and any(line.startswith("ray_raymq_append_seconds_bucket_total{") for line in lines)
            )

        poll_until(is_exported, 60, "Ray exports the broker's metrics")
        assert Admin(mq).cluster_info().metrics == []
