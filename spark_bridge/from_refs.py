"""Arrow tables in Ray's object store as DataFrames.

Spark's Python workers get each table from their node's object store, without a copy, and give it to Spark in batches.
References cannot be sent with a task: Ray would hold what they stand for until the driver ends. So an actor of the
bridge, the *shelf*, has them, and tasks ask it.

What a DataFrame reads has to stay as long as Spark may read it: through this DataFrame, others made from it, or what it
cached. All of these have the one function object in Spark's JVM that was made with the DataFrame. A weak reference to
it tells when none is left.
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
from raymq.spark_bridge.ray_in_tasks import RayAddress
from raymq.spark_bridge.schema import arrow_schema
from raymq.spark_bridge.table_types import difference, schema_of_tables
from raymq.spark_bridge.tables import batches_of, in_schema

#: Tasks for each core, where there are more tables: a task costs some milliseconds.
_TASKS_PER_CORE: Final = 64
_LOOK_SECONDS: Final = 2.0
#: Looks between two collections of the JVM's garbage, which doubles with each one that did not help.
_MOST_LOOKS: Final = 256


class Shelf:
    """An actor that has the references of DataFrames that are in use."""

    def __init__(self) -> None:
        self._refs: dict[str, list[ray.ObjectRef[Any]]] = {}

    def put(self, key: str, refs: list[ray.ObjectRef[Any]]) -> None:
        """Hold the references of a DataFrame."""
        self._refs[key] = refs

    def get(self, key: str, number: int) -> list[ray.ObjectRef[Any]]:
        """Return one of them, in a list: by itself Ray would take it for the answer."""
        return [self._refs[key][number]]

    def drop(self, key: str) -> None:
        """Let go of the references of a DataFrame."""
        self._refs.pop(key, None)


@dataclass(frozen=True, slots=True)
class GetTables:
    """For `spark.range(0, n, 1, m).mapInArrow`: row number i becomes the rows of table i."""

    where: RayAddress
    shelf: str
    key: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark's entry."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from batches_of(in_schema(self._table(number), self.schema))

    def _table(self, number: int) -> pa.Table:
        connected = self.where.connected()
        try:
            (ref,) = connected.get(self.where.actor(self.shelf).get.remote(self.key, number))
            table = connected.get(ref)
        except (connected.exceptions.ObjectLostError, connected.exceptions.RayActorError, ValueError) as error:
            raise RayMQError(f"table {number} of the refs is gone: {error}") from error
        if not isinstance(table, pa.Table):
            raise InvalidInput("refs", "references of Arrow tables", f"table {number}: {type(table).__name__}")
        wrong = difference(table.schema, self.schema)
        if wrong is not None:
            raise InvalidInput("refs", "tables of the schema", f"table {number}: {wrong}")
        return table


@dataclass(slots=True)
class _InUse:
    """A DataFrame whose tables are held."""

    key: str
    df: weakref.ref[DataFrame]
    function: Any
    """The JVM's weak reference to its function, which goes into a queue when nothing has the function any more."""


class Tables:
    """The DataFrames of one bridge that were made of tables. Any thread."""

    def __init__(self, spark: SparkSession, cores: int) -> None:
        self._spark = spark
        self._cores = cores
        self._where = RayAddress(ray.get_runtime_context().gcs_address, str(spark.sparkContext.appName))
        self._name = f"raymq-shelf-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._in_use: list[_InUse] = []
        self._shelf: Any = None
        self._closed = threading.Event()

    def open(self, refs: Sequence[ray.ObjectRef[Any]], schema: pa.Schema | StructType | str) -> DataFrame:
        """What SparkBridge.from_refs does."""
        wanted = schema_of_tables(schema)
        refs = list(refs) if isinstance(refs, Sequence) else [refs]
        odd = next((ref for ref in refs if not isinstance(ref, ray.ObjectRef)), None)
        if odd is not None:
            raise InvalidInput("refs", "a list of Ray's references", type(odd).__name__)
        if not refs:
            return self._spark.createDataFrame([], wanted)
        key = uuid.uuid4().hex
        try:
            ray.get(self._opened().put.remote(key, refs))
        except ray.exceptions.RayActorError as error:
            raise RayMQError("the actor that holds the bridge's tables has ended") from error
        task = GetTables(self._where, self._name, key, arrow_schema(wanted))
        tasks = min(len(refs), _TASKS_PER_CORE * self._cores)
        df = self._spark.range(0, len(refs), 1, tasks).mapInArrow(task, wanted)
        function = df._jdf.queryExecution().logical().functionExpr().func()  # noqa: SLF001 - pyspark hides it
        references = self._jvm.java.lang.ref
        weak = references.WeakReference(function, references.ReferenceQueue())
        with self._lock:
            self._in_use.append(_InUse(key, weakref.ref(df), weak))
        return df

    def close(self) -> None:
        """Let go of everything."""
        self._closed.set()
        with self._lock:
            shelf, self._shelf = self._shelf, None
        if shelf is not None and ray.is_initialized():
            ray.kill(shelf)

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm  # noqa: SLF001 - pyspark's own door to Java has no other name

    def _opened(self) -> Any:
        with self._lock:
            if self._shelf is None:
                options = {"name": self._name, "namespace": self._where.namespace, "num_cpus": 0}
                self._shelf = ray.remote(Shelf).options(**options).remote()
                threading.Thread(target=self._run, name="raymq-spark-tables", daemon=True).start()
            return self._shelf

    def _run(self) -> None:
        looks = between = 1
        while not self._closed.wait(_LOOK_SECONDS):
            with contextlib.suppress(Py4JError, OSError):  # the JVM is gone, and what it used: close() comes
                if self._look():
                    looks = between = 1
                elif any(each.df() is None for each in self._in_use):
                    looks -= 1
                    if looks <= 0:
                        self._jvm.System.gc()
                        between = min(2 * between, _MOST_LOOKS)
                        looks = between

    def _look(self) -> bool:
        """Let go of what no plan of Spark uses any more; whether there was any."""
        # Not `get()`, which would hold the function again until Py4J has forgotten the answer.
        gone = [each for each in self._in_use if each.function.isEnqueued()]
        with self._lock:
            shelf = self._shelf
            self._in_use = [each for each in self._in_use if each not in gone]
        for each in gone:
            if shelf is not None:
                shelf.drop.remote(each.key)
        return bool(gone)
