"""Test that unit tests cannot start Ray by ray.init or by a first remote call."""

from __future__ import annotations

import pytest
import ray


def test_ray_init_is_refused() -> None:
    with pytest.raises(AssertionError, match="must not start Ray"):
        ray.init()
    assert not ray.is_initialized()


def test_remote_call_does_not_start_ray() -> None:
    @ray.remote
    def task() -> int:
        return 1

    with pytest.raises(AssertionError, match="must not start Ray"):
        task.remote()
    assert not ray.is_initialized()


def test_actor_creation_does_not_start_ray() -> None:
    @ray.remote
    class Actor:
        pass

    with pytest.raises(AssertionError, match="must not start Ray"):
        Actor.remote()
    assert not ray.is_initialized()


def test_get_actor_does_not_start_ray() -> None:
    with pytest.raises(AssertionError, match="must not start Ray"):
        ray.get_actor("broker-a")
    assert not ray.is_initialized()
