"""Test that the sides of the Spark bench can be instantiated; no other test does it."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("pyspark")

from tests.bench.spark_sides import Side


@pytest.mark.parametrize("side", Side.__subclasses__(), ids=lambda side: side.name)
def test_each_spark_bench_side_is_complete(side: type[Side]) -> None:
    assert not inspect.isabstract(side)
    assert set(side.ways) <= {"out", "back"}
