"""Test that a session imports parts of RayDP, and a program that uses RayDP all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")


def run_program(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_session_does_not_import_ray_data_and_pandas() -> None:
    # Ray Data and pandas took a second of the start, both in the driver and in the master's process.
    program = (
        "import sys; import raymq.spark_bridge.spark_application;"
        "print([name for name in ('raydp', 'raydp.context', 'ray.data', 'pandas') if name in sys.modules])"
    )
    assert run_program(program) == "[]"


@pytest.mark.parametrize("first", ["raydp", "raymq.spark_bridge.spark_application"])
def test_user_import_of_raydp_is_complete(first: str) -> None:
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
    assert run_program(program) == "whole"
