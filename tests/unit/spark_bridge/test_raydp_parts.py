"""A session loads those parts of RayDP that it needs; a program that uses RayDP itself has it whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")


def said_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_session_does_not_load_what_it_does_not_use() -> None:
    """Ray Data and pandas, in the driver and in the master's process: a second of the start in each."""
    program = (
        "import sys; import raymq.spark_bridge.spark_application;"
        "print([name for name in ('raydp', 'raydp.context', 'ray.data', 'pandas') if name in sys.modules])"
    )
    assert said_by(program) == "[]"


@pytest.mark.parametrize("first", ["raydp", "raymq.spark_bridge.spark_application"])
def test_who_imports_raydp_itself_has_all_of_it(first: str) -> None:
    program = (
        f"import sys, {first}, raymq.spark_bridge.spark_application as launch, raydp, raydp.spark.ray_cluster\n"
        "from raydp.spark import SparkCluster\n"
        "assert callable(raydp.init_spark)\n"
        "assert issubclass(launch._SparkCluster, SparkCluster)\n"
        "from raymq.spark_bridge.raydp_imports import minimal_raydp\n"
        "with minimal_raydp():\n    import raydp as inside\n"
        "assert inside is raydp is sys.modules['raydp']\n"
        "print('whole')"
    )
    assert said_by(program) == "whole"
