"""A Ray of the test module's own: never one that happens to run on the machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from raymq.cluster import ray_runtime


@contextmanager
def own_ray(cpus: int = 4) -> Iterator[None]:
    """Start a Ray on loopback, as `raymq.cluster.start` would where none runs, and end it."""
    assert not ray.is_initialized(), "a test left its Ray running"
    ray_runtime.start_embedded(cpus)
    try:
        logging.getLogger("ray").setLevel(logging.ERROR)
        yield
    finally:
        ray.shutdown()
