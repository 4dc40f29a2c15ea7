"""Create DataFrames from Arrow tables in Ray's object store.

Spark's Python workers get each table from their node's object store, without a copy, and pass it to Spark in batches.
References cannot be sent with a task, because Ray would keep their objects until the driver ends. So an actor of the
bridge, the `TableHolder`, holds the references, and tasks request them from it.

The tables of a DataFrame must be kept as long as Spark may read them: through this DataFrame, through others derived
from it, or through a cache. All of these share the one function object in Spark's JVM that was created with the
DataFrame. A weak reference to this function shows when it is no longer in use.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import ray
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from raymq.client.errors import InvalidInput, RayMQError
from raymq.spark_bridge.dataframe_schema import arrow_schema
from raymq.spark_bridge.table_batches import cast_table, split_batches
from raymq.spark_bridge.table_types import schema_difference, schema_of_tables
from raymq.spark_bridge.worker_ray import RayConnector

#: Tasks for each core if there are more tables, because each task costs some milliseconds.
_TASKS_PER_CORE: Final = 64
_POLL_SECONDS: Final = 2.0
#: The most polls between two garbage collections of the JVM; the number doubles after each collection without effect.
_MAX_POLLS: Final = 256


class TableHolder:
    """An actor that holds the references of the DataFrames in use."""

    def __init__(self) -> None:
        self._refs: dict[str, list[ray.ObjectRef[Any]]] = {}

    def put(self, key: str, refs: list[ray.ObjectRef[Any]]) -> None:
        """Hold the references of a DataFrame."""
        self._refs[key] = refs

    def get(self, key: str, number: int) -> list[ray.ObjectRef[Any]]:
        """Return one reference in a list; Ray would resolve a bare reference to its object."""
        return [self._refs[key][number]]

    def drop(self, key: str) -> None:
        """Release the references of a DataFrame."""
        self._refs.pop(key, None)


@dataclass(frozen=True, slots=True)
class FetchTables:
    """A function for `spark.range(0, n, 1, m).mapInArrow`: row i becomes the rows of table i."""

    connector: RayConnector
    holder: str
    key: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the tables of the rows; Spark calls this in a task."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from split_batches(cast_table(self._table(number), self.schema))

    def _table(self, number: int) -> pa.Table:
        connected = self.connector.connected()
        try:
            (ref,) = connected.get(self.connector.actor(self.holder).get.remote(self.key, number))
            table = connected.get(ref)
        except (connected.exceptions.ObjectLostError, connected.exceptions.RayActorError, ValueError) as error:
            raise RayMQError(f"table {number} of the refs is gone: {error}") from error
        if not isinstance(table, pa.Table):
            raise InvalidInput("refs", "references of Arrow tables", f"table {number}: {type(table).__name__}")
        wrong = schema_difference(table.schema, self.schema)
        if wrong is not None:
            raise InvalidInput("refs", "tables of the schema", f"table {number}: {wrong}")
        return table


@dataclass(slots=True)
class _HeldDataFrame:
    """A DataFrame whose tables are held."""

    key: str
    df: weakref.ref[DataFrame]
    function: Any
    """The JVM's weak reference to its function; it is put into a queue when the function is no longer used."""


class HeldTables:
    """The DataFrames of one bridge that were created from tables; for use by any thread."""

    def __init__(self, spark: SparkSession, cores: int) -> None:
        self._spark = spark
        self._cores = cores
        self._connector = RayConnector(ray.get_runtime_context().gcs_address, str(spark.sparkContext.appName))
        self._name = f"raymq-shelf-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._in_use: list[_HeldDataFrame] = []
        self._holder: Any = None
        self._closed = threading.Event()

    def open(self, refs: Sequence[ray.ObjectRef[Any]], schema: pa.Schema | StructType | str) -> DataFrame:
        """Create a DataFrame; see `SparkBridge.from_refs`."""
        spark_schema = schema_of_tables(schema)
        refs = list(refs) if isinstance(refs, Sequence) else [refs]
        odd = next((ref for ref in refs if not isinstance(ref, ray.ObjectRef)), None)
        if odd is not None:
            raise InvalidInput("refs", "a list of Ray's references", type(odd).__name__)
        if not refs:
            return self._spark.createDataFrame([], spark_schema)
        key = uuid.uuid4().hex
        try:
            ray.get(self._opened().put.remote(key, refs))
        except ray.exceptions.RayActorError as error:
            raise RayMQError("the actor that holds the bridge's tables has ended") from error
        task = FetchTables(self._connector, self._name, key, arrow_schema(spark_schema))
        tasks = min(len(refs), _TASKS_PER_CORE * self._cores)
        df = self._spark.range(0, len(refs), 1, tasks).mapInArrow(task, spark_schema)
        function = df._jdf.queryExecution().logical().functionExpr().func()  # noqa: SLF001 - pyspark hides it
        references = self._jvm.java.lang.ref
        weak = references.WeakReference(function, references.ReferenceQueue())
        with self._lock:
            self._in_use.append(_HeldDataFrame(key, weakref.ref(df), weak))
        return df

    def close(self) -> None:
        """Release all references."""
        self._closed.set()
        with self._lock:
            holder, self._holder = self._holder, None
        if holder is not None and ray.is_initialized():
            ray.kill(holder)

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm  # noqa: SLF001 - pyspark has no public name for its gateway to Java

    def _opened(self) -> Any:
        with self._lock:
            if self._holder is None:
                options = {"name": self._name, "namespace": self._connector.namespace, "num_cpus": 0}
                self._holder = ray.remote(TableHolder).options(**options).remote()
                threading.Thread(target=self._run, name="raymq-spark-tables", daemon=True).start()
            return self._holder

    def _run(self) -> None:
        looks = between = 1
        while not self._closed.wait(_POLL_SECONDS):
            with contextlib.suppress(Py4JError, OSError):  # The JVM has ended; close() follows.
                if self._look():
                    looks = between = 1
                elif any(each.df() is None for each in self._in_use):
                    looks -= 1
                    if looks <= 0:
                        self._jvm.System.gc()
                        between = min(2 * between, _MAX_POLLS)
                        looks = between

    def _look(self) -> bool:
        """Release the tables that no Spark plan uses any more.

        Return True if any were released.
        """
        # `get()` would keep the function in use until Py4J releases the result.
        unused = [each for each in self._in_use if each.function.isEnqueued()]
        with self._lock:
            holder = self._holder
            self._in_use = [each for each in self._in_use if each not in unused]
        for each in unused:
            if holder is not None:
                holder.drop.remote(each.key)
        return bool(unused)
