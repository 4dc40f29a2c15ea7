"""Fixtures of the unit tests, which run without a cluster and cannot start Ray."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import ray


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("unit tests must not start Ray: move the test to tests/integration")


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace ray.init, which remote calls use too, by a function that fails the test."""
    monkeypatch.setattr(ray, "init", _refuse)
