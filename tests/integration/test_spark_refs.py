"""Test DataFrames to and from Arrow tables in Ray's object store, on a real Ray and a real Spark."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.polling import poll_until

pytest.importorskip("raydp")

import ray
from pyspark.sql import DataFrame

from raymq import cluster
from raymq.client import Admin, InvalidInput, Producer
from raymq.client.errors import ClientClosed
from raymq.spark_bridge import SparkBridge
from raymq.spark_bridge.table_batches import TABLE_BYTES
from tests.integration.shared_spark import SharedSpark
from tests.integration.test_spark_columns import VALUES, table_of

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def mq(shared_spark: SharedSpark) -> cluster.Cluster:
    return shared_spark.mq


@pytest.fixture(scope="module")
def bridge(shared_spark: SharedSpark) -> SparkBridge:
    return shared_spark.bridge


def free_bytes() -> float:
    """Return the free bytes of Ray's object store, without pinned objects."""
    return float(ray.available_resources().get("object_store_memory", 0))


def is_gone(ref: ray.ObjectRef[Any]) -> bool:
    """Return whether the table is no longer available."""
    try:
        ray.get(ref, timeout=60)
    except ray.exceptions.OwnerDiedError:
        return True
    return False


def frame_of_every_type(bridge: SparkBridge) -> DataFrame:
    kinds = {**VALUES, "INTERVAL DAY TO SECOND": ["interval '1' day", "interval '-1 00:00:00.000001' day to second"]}
    most = max(map(len, kinds.values()))
    rows = []
    for row in range(most + 1):  # in the first row all are null
        cells = [
            f"cast({values[(row - 1) % len(values)] if row else 'null'} AS {kind}) AS c{number}"
            for number, (kind, values) in enumerate(kinds.items())
        ]
        rows.append(f"select {row} AS id, {', '.join(cells)}")
    return bridge.spark.sql(" union all ".join(rows))


def assert_same_tables(left: pa.Table, right: pa.Table) -> None:
    """Compare types and values as text, in which NaN equals NaN."""
    assert left.schema.names == right.schema.names
    assert [str(kind) for kind in left.schema.types] == [str(kind) for kind in right.schema.types]
    for name in left.schema.names:
        assert str(left.column(name).to_pylist()) == str(right.column(name).to_pylist()), name


def test_every_type_is_exported_and_imported_exactly(bridge: SparkBridge) -> None:
    df = frame_of_every_type(bridge).repartition(3)
    refs, release = bridge.to_refs(df)
    tables = ray.get(refs)
    whole = pa.concat_tables(tables).sort_by("id")
    assert_same_tables(whole, table_of(df))
    assert whole.column("c4").to_pylist()[:2] == [None, 2**62 + 1]
    assert_same_tables(table_of(bridge.from_refs(refs, tables[0].schema)), whole)
    assert_same_tables(table_of(bridge.from_refs(refs, df.schema)), whole)
    release()


@pytest.mark.long
def test_empty_frames_keep_columns(bridge: SparkBridge) -> None:
    schema = "a LONG, m MAP<STRING,INT>, l ARRAY<ARRAY<STRING>>"
    for df in (bridge.spark.createDataFrame([], schema), bridge.spark.range(0, 0, 1, 3).selectExpr("id AS a")):
        refs, release = bridge.to_refs(df)
        (table,) = ray.get(refs)
        assert (table.num_rows, table.column_names) == (0, df.columns)
        back = bridge.from_refs(refs, table.schema)
        assert (back.collect(), back.schema.simpleString()) == ([], df.schema.simpleString())
        release()
    none = bridge.from_refs([], schema)
    assert (none.count(), none.columns) == (0, ["a", "m", "l"])


def test_empty_tables_add_no_rows(bridge: SparkBridge) -> None:
    schema = pa.schema([("n", pa.int64()), ("l", pa.list_(pa.list_(pa.string())))])
    full = pa.table({"n": [1, 2], "l": [[[]], None]}, schema=schema)
    refs = [ray.put(table) for table in (schema.empty_table(), full, schema.empty_table(), full.slice(1))]
    assert [row.n for row in bridge.from_refs(refs, schema).collect()] == [1, 2, 2]


def test_empty_lists_from_java_are_valid_arrow(bridge: SparkBridge) -> None:
    df = bridge.spark.range(3).selectExpr(
        "id", "cast(array() AS ARRAY<ARRAY<STRING>>) AS l", "if(id = 1, null, cast(map() AS MAP<STRING,BINARY>)) AS m"
    )
    refs, release = bridge.to_refs(df.coalesce(1))
    (table,) = ray.get(refs)
    table.validate(full=True)
    assert table.to_pylist() == [{"id": n, "l": [], "m": None if n == 1 else []} for n in range(3)]
    release()


def test_unsupported_type_error_names_column(bridge: SparkBridge) -> None:
    with pytest.raises(InvalidInput, match=r"months\.element: interval"):
        bridge.to_refs(bridge.spark.range(1).selectExpr("array(interval 2 month) AS months"))
    table = pa.table({"n": pa.array([1], pa.uint32())})
    with pytest.raises(InvalidInput, match="n: uint32"):
        bridge.from_refs([ray.put(table)], table.schema)
    with pytest.raises(InvalidInput, match="Ray's references"):
        bridge.from_refs([table], pa.schema([("n", pa.int64())]))
    wanted = pa.schema([("n", pa.int64())])
    with pytest.raises(Exception, match=r"InvalidInput: refs: .*table 1: column n of uint32, not int64"):
        bridge.from_refs([ray.put(pa.table({"n": [1]})), ray.put(table)], wanted).count()
    with pytest.raises(Exception, match=r"InvalidInput: refs: .*table 0: dict"):
        bridge.from_refs([ray.put({"n": 1})], wanted).count()
    with pytest.raises(InvalidInput, match="a DataFrame"):
        bridge.to_refs("df")  # type: ignore[arg-type]


@pytest.mark.long
def test_failed_export_frees_object_store(bridge: SparkBridge) -> None:
    before = free_bytes()
    with pytest.raises(Exception, match="told to fail"):
        bridge.to_refs(
            bridge.spark.range(0, 400_000, 1, 4).selectExpr(
                "if(id = 399999, raise_error('told to fail'), repeat('x', 100)) AS s"
            )
        )
    assert poll_until(lambda: free_bytes() >= before, 60)


@pytest.mark.long
def test_large_partition_is_split_and_release_frees_tables(bridge: SparkBridge) -> None:
    before = free_bytes()
    df = bridge.spark.range(0, 800_000, 1, 2).selectExpr("id", "repeat('x', 100) AS s")
    refs, release = bridge.to_refs(df)
    rows = [table.num_rows for table in ray.get(refs)]
    assert len(rows) == 4
    assert sum(rows) == 800_000
    assert poll_until(lambda: free_bytes() < before - 80 * MIB, 60)
    assert max(table.nbytes for table in ray.get(refs)) < TABLE_BYTES + 8 * MIB
    kept = bridge.spark.sparkContext._jsc.sc().getRDDStorageInfo()  # type: ignore[attr-defined]
    assert len(kept) == 0, "Spark keeps a copy"
    release()
    release()
    assert poll_until(lambda: free_bytes() >= before, 60)
    assert poll_until(lambda: all(is_gone(ref) for ref in refs), 60)


@pytest.mark.long
def test_tables_are_freed_without_references(bridge: SparkBridge) -> None:
    before = free_bytes()
    refs, _ = bridge.to_refs(bridge.spark.range(400_000).selectExpr("id", "repeat('x', 100) AS s"))
    assert poll_until(lambda: free_bytes() < before - 30 * MIB, 60)
    refs.clear()
    assert poll_until(lambda: free_bytes() >= before, 60)


@pytest.mark.long
def test_tables_live_as_long_as_dataframe(bridge: SparkBridge) -> None:
    before = free_bytes()
    df = bridge.from_refs([ray.put(pa.table({"n": list(range(2_000_000))}))], "n LONG")
    even = df.where("n % 2 = 0")
    del df
    gc.collect()
    assert even.count() == 1_000_000
    assert even.selectExpr("max(n)").first()[0] == 1_999_998  # type: ignore[index]
    del even
    assert poll_until(lambda: gc.collect() is not None and free_bytes() >= before, 120)


@pytest.mark.long
def test_ray_data_reads_and_returns_tables(bridge: SparkBridge) -> None:
    refs, release = bridge.to_refs(bridge.spark.range(0, 1_000, 1, 4).selectExpr("id", "cast(id AS STRING) AS s"))
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_arrow_refs(refs)
    assert dataset.count() == 1_000
    assert dataset.sum("id") == 499_500
    doubled = dataset.map_batches(
        lambda table: table.append_column("twice", [[2 * n for n in table["id"].to_pylist()]]), batch_format="pyarrow"
    )
    out = doubled.to_arrow_refs()
    back = bridge.from_refs(out, "id LONG, s STRING, twice LONG")
    assert Counter(tuple(row) for row in back.collect()) == Counter((n, str(n), 2 * n) for n in range(1_000))
    release()


@pytest.mark.long
def test_ray_workers_still_run_program_functions(bridge: SparkBridge) -> None:
    """Avoid the effect of RayDP's from_spark: pooled workers then miss the program's functions."""
    refs, release = bridge.to_refs(bridge.spark.range(0, 1_000, 1, 8))
    assert bridge.from_refs(refs, "id LONG").count() == 1_000

    @ray.remote(num_cpus=0)
    def own(table: pa.Table) -> int:
        return int(table.num_rows)

    assert sum(ray.get([own.remote(ref) for ref in refs])) == 1_000
    assert sum(ray.get([own.remote(pa.table({"n": [n]})) for n in range(20)])) == 20
    release()


class Sender:
    """Run a producer in an actor, as programs do."""

    def __init__(self, name_servers: list[str]) -> None:
        self._mq = cluster.connect(name_servers=name_servers)
        self._producer = Producer(self._mq, "senders")

    def send(self, table: pa.Table, topic: str) -> int:
        """Send a table that Ray passes from the object store."""
        return self._producer.send_table(topic, table, body="value", keys="id").rows


@pytest.mark.long
def test_producer_actors_receive_tables_by_reference(mq: cluster.Cluster, bridge: SparkBridge) -> None:
    with Admin(mq) as admin:
        admin.create_topic("fed", queues=2)
    refs, release = bridge.to_refs(bridge.spark.range(0, 3_000, 1, 3).selectExpr("id", "cast(id AS STRING) AS value"))
    senders: list[Any] = [ray.remote(num_cpus=0)(Sender).remote(mq.name_servers) for _ in range(2)]
    ray.get([senders[number % 2].send.remote(ref, "fed") for number, ref in enumerate(refs)])
    release()
    found = bridge.read("fed", columns=["body"]).collect()
    assert Counter(int(row.body) for row in found) == Counter(range(3_000))


@pytest.mark.long
def test_killed_executor_loses_and_duplicates_no_rows(bridge: SparkBridge, tmp_path: Path) -> None:
    def fatal_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Kill the JVM behind a partition's last row, after a table has been handed on."""
        import os
        import signal

        partition = -1
        for batch in batches:
            partition = batch.column(0)[0].as_py() // 400_000
            yield batch
        if partition == 1 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            with open(f"/proc/{os.getppid()}/status") as status:  # the daemon of Spark's Python workers
                executor = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
            os.kill(executor, signal.SIGKILL)

    df = bridge.spark.range(0, 1_200_000, 1, 3).selectExpr("id", "repeat('x', 100) AS s")
    refs, release = bridge.to_refs(df.mapInArrow(fatal_once, df.schema))
    assert (tmp_path / "killed").exists()
    ids = pa.concat_tables(ray.get(refs)).column("id").to_numpy()
    assert np.array_equal(ids, np.arange(1_200_000))
    release()


@pytest.mark.long
def test_closed_bridge_refuses_calls_and_keeps_tables(shared_spark: SharedSpark, bridge: SparkBridge) -> None:
    """Close the bridge; this must be the last test of this file."""
    refs, release = bridge.to_refs(bridge.spark.range(10))
    shared_spark.close_bridge()
    assert sum(table.num_rows for table in ray.get(refs)) == 10
    release()
    with pytest.raises(ClientClosed):
        bridge.to_refs(None)  # type: ignore[arg-type]
    with pytest.raises(ClientClosed):
        bridge.from_refs([], "n LONG")
