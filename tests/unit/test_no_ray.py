"""Unit tests cannot start Ray, neither by ray.init nor by a first remote call."""

from __future__ import annotations

import pytest
import ray


def test_init_is_refused() -> None:
    with pytest.raises(AssertionError, match="must not start Ray"):
        ray.init()
    assert not ray.is_initialized()


def test_a_remote_call_does_not_start_ray_by_itself() -> None:
    @ray.remote
    def task() -> int:
        return 1

    with pytest.raises(AssertionError, match="must not start Ray"):
        task.remote()
    assert not ray.is_initialized()


def test_an_actor_does_not_start_ray_by_itself() -> None:
    @ray.remote
    class Actor:
        pass

    with pytest.raises(AssertionError, match="must not start Ray"):
        Actor.remote()
    assert not ray.is_initialized()


def test_get_actor_does_not_start_ray_by_itself() -> None:
    with pytest.raises(AssertionError, match="must not start Ray"):
        ray.get_actor("broker-a")
    assert not ray.is_initialized()
