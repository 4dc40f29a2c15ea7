"""What all sides of `bench_spark.py` move: DataFrames of messages, and how it is seen that all of them came."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

#: Rows and bytes of each.
SIZES: Final = ((1_000_000, 1_024), (5_000_000, 100))
CORES: Final = 2
MEMORY: Final = "1g"
#: RayDP keeps what leaves Spark in its executor, too, and ends with less.
RAYDP_MEMORY: Final = "2g"
#: Of Ray's object store: the tables of one round, twice.
STORE_BYTES: Final = 3 << 30
#: The only column.
VALUE: Final = "value"
_DIGITS: Final = 10


def table(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Texts of `size` characters, each another one: else Parquet would keep one of them. To make them costs little."""
    text = f"concat(lpad(cast(id AS STRING), {_DIGITS}, '0'), repeat('x', {size - _DIGITS}))"
    return spark.range(0, rows, 1, 2 * CORES).selectExpr(f"{text} AS {VALUE}")


def look(df: DataFrame, column: str, rows: int, size: int) -> None:
    """Look at every value, in Spark's JVM."""
    ((count, total),) = df.selectExpr("count(*)", f"sum(length({column}))").collect()
    assert (count, total) == (rows, rows * size), f"{count} rows of {total} bytes came, not {rows} of {rows * size}"
