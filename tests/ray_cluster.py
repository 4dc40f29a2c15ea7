"""Start a separate Ray for a test module, independent of any Ray on the machine."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import ray

from raymq import cluster
from raymq.cluster import ray_runtime


@contextmanager
def own_ray(cpus: int = 4) -> Iterator[None]:
    """Start a Ray on loopback as `raymq.cluster.start` does if none runs, and end it."""
    assert not ray.is_initialized(), "a test left its Ray running"
    ray_runtime.start_embedded(cpus)
    try:
        logging.getLogger("ray").setLevel(logging.ERROR)
        yield
    finally:
        ray.shutdown()


@contextmanager
def own_cluster(
    folders: pytest.TempPathFactory, name: str, config: Mapping[str, Any], brokers: int = 2
) -> Iterator[cluster.Cluster]:
    """Start a cluster on a separate Ray, in a namespace that begins with `name`."""
    namespace = f"{name}-{uuid.uuid4().hex[:6]}"
    root = folders.mktemp("data")
    with own_ray(), cluster.start(brokers=brokers, root=root, namespace=namespace, config=config) as running:
        yield running
