"""The sides of the Spark bench can be made: nothing else that a test runs makes them."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("pyspark")

from tests.bench.spark_sides import Side


@pytest.mark.parametrize("side", Side.__subclasses__(), ids=lambda side: side.name)
def test_a_side_is_whole(side: type[Side]) -> None:
    assert not inspect.isabstract(side)
    assert set(side.ways) <= {"out", "back"}
