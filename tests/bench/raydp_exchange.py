"""RayDP's own from_spark and to_spark: the baseline of `bench_spark.py --only exchange`, as a program of its own.

RayDP looks for its actors in the driver's namespace and allows one session a process, so it cannot share a bridge's.
It prints a line when it is ready; then, for each line on its standard input, the seconds that this takes:
    out ROWS BYTES      from_spark of a DataFrame
    back ROWS BYTES     to_spark of what came out of it, every value looked at; it is let go of then
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from pathlib import Path

import ray
import raydp
from ray.data import DataContext

from raymq.actors.java import java_environment, temporary_environment
from raymq.cluster import ray_runtime
from raymq.spark_bridge.session_settings import python_settings, spark_settings
from raymq.spark_bridge.spark_logging import write_log_settings
from raymq.spark_bridge.spark_placement import Placement
from tests.bench.exchange import CORES, RAYDP_MEMORY, STORE_BYTES, VALUE, look, table


def main() -> None:
    folder = Path(sys.argv[1])
    ray_runtime._OBJECT_STORE_BYTES = STORE_BYTES
    ray_runtime.start_embedded(cpus=2)
    logging.getLogger("ray").setLevel(logging.ERROR)
    DataContext.get_current().enable_progress_bars = False
    log_settings, _ = write_log_settings(folder)
    settings = spark_settings(
        executors=1,
        cores=CORES,
        memory=RAYDP_MEMORY,
        directory=folder,
        log_settings=log_settings,
        placement=Placement(),
    )
    with temporary_environment({**java_environment(), **python_settings()}):
        spark = raydp.init_spark(f"baseline-{uuid.uuid4().hex[:8]}", 1, CORES, RAYDP_MEMORY, configs=settings)
    print("ready", flush=True)
    df = dataset = None
    for line in sys.stdin:
        what, rows, size = line.split()[0], *map(int, line.split()[1:])
        begun = time.monotonic()
        if what == "out":
            df = table(spark, rows, size)
            dataset = ray.data.from_spark(df)
        else:
            assert dataset is not None
            look(dataset.to_spark(spark), VALUE, rows, size)
        took = time.monotonic() - begun
        if what == "back":
            dataset = None
            raydp.spark.dataset.release_spark_recoverable(df)
        print(took, flush=True)
    raydp.stop_spark()
    ray.shutdown()


if __name__ == "__main__":
    main()
