"""DataFrames as Arrow tables in Ray's object store.

Spark's Python workers hand their rows, in tables of some size, to an actor on their own node, a *keeper*, which puts
them into that node's object store and owns them: they outlive the task, the executor and Spark, and when the keeper is
ended, Ray frees them at once, whoever still has a reference. Nothing but references passes the driver, and Spark keeps
nothing. (What a worker puts itself would end with it, and Ray has no other way to give it away.)
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
from pyspark.sql import DataFrame
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raymq.client.errors import RayMQError
from raymq.spark_bridge.ray_in_tasks import RayAddress
from raymq.spark_bridge.table_types import schema_of_dataframe
from raymq.spark_bridge.tables import Gathered

_HANDED = pa.schema([("keeper", pa.string()), ("part", pa.string()), ("tables", pa.int64())])

#: Keepers end with their last handle: these are of tables that were not released.
_in_use: set[Any] = set()


class RefsHolder:
    """An actor that owns the tables of one node. It does nothing else, so that what it has ends with it."""

    def __init__(self) -> None:
        self._parts: dict[str, list[ray.ObjectRef[Any]]] = {}

    def keep(self, part: str, table: pa.Table) -> None:
        """Put a table into the object store, behind those of the same part."""
        self._parts.setdefault(part, []).append(ray.put(table))

    def give(self, parts: list[str]) -> list[list[ray.ObjectRef[Any]]]:
        """Hand over the tables of these parts, and forget all: who has the references decides from now on."""
        given = [self._parts[part] for part in parts]
        self._parts.clear()
        return given


@dataclass(frozen=True, slots=True)
class HandTables:
    """For `df.mapInArrow`: hands the rows of a partition to a keeper and yields which has them (keeper, part, tables).

    Every attempt at a task has a part of its own, and the driver takes only those that it got an answer from.
    """

    where: RayAddress
    keepers: dict[str, str]
    """The names of the keepers by the id of their node."""
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark's entry."""
        gathered = Gathered(self.schema)
        part, count, under_way = uuid.uuid4().hex, 0, None
        name, keeper = "", None
        for table in gathered.tables(batches):
            connected = self.where.connected()
            if keeper is None:
                name = self._nearest(connected.get_runtime_context().get_node_id())
                keeper = self.where.actor(name)
            if under_way is not None:  # one is on its way while the next one is gathered
                connected.get(under_way)
            under_way = keeper.keep.remote(part, table)
            count += 1
        if under_way is not None:
            self.where.connected().get(under_way)
        rows = [[name], [part], [count]] if count else [[], [], []]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(rows, _HANDED, strict=True)], schema=_HANDED
        )

    def _nearest(self, node: str) -> str:
        return self.keepers.get(node) or next(iter(self.keepers.values()))


def to_refs(df: DataFrame) -> tuple[list[ray.ObjectRef[Any]], Callable[[], None]]:
    """What SparkBridge.to_refs does."""
    schema = schema_of_dataframe(df.schema)
    context = df.sparkSession.sparkContext
    where = RayAddress(ray.get_runtime_context().gcs_address, str(context.appName))
    names = {node: f"raymq-keeper-{uuid.uuid4().hex}" for node in _nodes_of_executors(context)}
    keepers = {name: _start_keeper(node, name, where.namespace) for node, name in names.items()}
    _in_use.update(keepers.values())

    def release() -> None:
        for keeper in keepers.values():
            if keeper in _in_use and ray.is_initialized():
                ray.kill(keeper)
            _in_use.discard(keeper)

    try:
        handed = df.mapInArrow(HandTables(where, names, schema), "keeper STRING, part STRING, tables LONG").collect()
        by_part: dict[str, list[ray.ObjectRef[Any]]] = {}
        for name, keeper in keepers.items():
            parts = [row.part for row in handed if row.keeper == name]
            by_part.update(zip(parts, ray.get(keeper.give.remote(parts)), strict=True))
        refs = [ref for row in handed for ref in by_part[row.part]]
        if not refs:  # a DataFrame without rows has columns nevertheless
            refs = [ref for keeper in list(keepers.values())[:1] for ref in _empty(keeper, schema)]
    except ray.exceptions.RayActorError as error:
        release()
        raise RayMQError("the tables of a node were lost with it", remedy="do it again") from error
    except BaseException:
        release()
        raise
    return refs, release


def _empty(keeper: Any, schema: pa.Schema) -> list[ray.ObjectRef[Any]]:
    keeper.keep.remote("empty", schema.empty_table())
    (refs,) = ray.get(keeper.give.remote(["empty"]))
    return list(refs)


def _start_keeper(node: str, name: str, namespace: str) -> Any:
    options = {
        "name": name,
        "namespace": namespace,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True),
    }
    return ray.remote(RefsHolder).options(**options).remote()


def _nodes_of_executors(context: Any) -> list[str]:
    """The ids of the Ray nodes that executors run on; the driver's own if that is not to be seen."""
    infos = context._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001 - not in pyspark's own
    hosts = {info.host() for info in infos}
    found = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] in hosts]
    return found or [ray.get_runtime_context().get_node_id()]
