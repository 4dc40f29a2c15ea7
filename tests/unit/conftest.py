"""Unit tests run without a cluster: here nothing can start Ray."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import ray


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("unit tests must not start Ray: move the test to tests/integration")


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces ray.init, which a first remote call goes through too, by a function that fails the test."""
    monkeypatch.setattr(ray, "init", _refuse)
