"""Export DataFrames as Arrow tables in Ray's object store.

Spark's Python workers send their rows, in tables of some size, to a `TableOwner`, an actor on their own node. It puts
the tables into that node's object store and owns them, so they outlast the task, the executor and Spark. When the actor
is ended, Ray frees the tables at once, even if references to them exist. Only references pass through the driver, and
Spark stores nothing. (An object that a worker puts itself would be freed when the worker ends, and Ray cannot transfer
its ownership.)
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
from raymq.spark_bridge.table_batches import TableBuilder
from raymq.spark_bridge.table_types import schema_of_dataframe
from raymq.spark_bridge.worker_ray import RayConnector

_EXPORTED = pa.schema([("owner", pa.string()), ("part", pa.string()), ("tables", pa.int64())])

#: An actor ends with its last handle: these handles keep the owners of tables that were not released.
_in_use: set[Any] = set()


class TableOwner:
    """An actor that owns the tables of one node.

    It has no other task, so that ending it frees only these tables.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[ray.ObjectRef[Any]]] = {}

    def add_table(self, part: str, table: pa.Table) -> None:
        """Put a table into the object store, after the tables of the same part."""
        self._parts.setdefault(part, []).append(ray.put(table))

    def take_refs(self, parts: list[str]) -> list[list[ray.ObjectRef[Any]]]:
        """Return the references of the tables of these parts, and forget all parts.

        The references that the caller holds keep the tables from then on.
        """
        taken = [self._parts[part] for part in parts]
        self._parts.clear()
        return taken


@dataclass(frozen=True, slots=True)
class ExportTables:
    """A function for `df.mapInArrow` that exports the rows of a partition.

    It sends the rows to a `TableOwner` and yields its name, the part, and the number of tables. Every attempt at a task
    has a part of its own, and the driver uses only the parts of attempts that returned a result.
    """

    connector: RayConnector
    owners: dict[str, str]
    """The names of the keepers by the id of their node."""
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Export the rows of a partition; Spark calls this in a task."""
        gathered = TableBuilder(self.schema)
        part, count, under_way = uuid.uuid4().hex, 0, None
        name, owner = "", None
        for table in gathered.tables(batches):
            connected = self.connector.connected()
            if owner is None:
                name = self._nearest(connected.get_runtime_context().get_node_id())
                owner = self.connector.actor(name)
            if under_way is not None:  # One table is being sent while the next one is gathered.
                connected.get(under_way)
            under_way = owner.add_table.remote(part, table)
            count += 1
        if under_way is not None:
            self.connector.connected().get(under_way)
        rows = [[name], [part], [count]] if count else [[], [], []]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(rows, _EXPORTED, strict=True)], schema=_EXPORTED
        )

    def _nearest(self, node: str) -> str:
        return self.owners.get(node) or next(iter(self.owners.values()))


def to_refs(df: DataFrame) -> tuple[list[ray.ObjectRef[Any]], Callable[[], None]]:
    """Export a DataFrame; see `SparkBridge.to_refs`."""
    schema = schema_of_dataframe(df.schema)
    context = df.sparkSession.sparkContext
    connector = RayConnector(ray.get_runtime_context().gcs_address, str(context.appName))
    names = {node: f"raymq-keeper-{uuid.uuid4().hex}" for node in _nodes_of_executors(context)}
    owners = {name: _start_owner(node, name, connector.namespace) for node, name in names.items()}
    _in_use.update(owners.values())

    def release() -> None:
        for owner in owners.values():
            if owner in _in_use and ray.is_initialized():
                ray.kill(owner)
            _in_use.discard(owner)

    try:
        handed = df.mapInArrow(
            ExportTables(connector, names, schema), "owner STRING, part STRING, tables LONG"
        ).collect()
        by_part: dict[str, list[ray.ObjectRef[Any]]] = {}
        for name, owner in owners.items():
            parts = [row.part for row in handed if row.owner == name]
            by_part.update(zip(parts, ray.get(owner.take_refs.remote(parts)), strict=True))
        refs = [ref for row in handed for ref in by_part[row.part]]
        if not refs:  # A DataFrame without rows still has columns, so it becomes an empty table.
            refs = [ref for owner in list(owners.values())[:1] for ref in _empty(owner, schema)]
    except ray.exceptions.RayActorError as error:
        release()
        raise RayMQError("the tables of a node were lost with it", remedy="call to_refs again") from error
    except BaseException:
        release()
        raise
    return refs, release


def _empty(owner: Any, schema: pa.Schema) -> list[ray.ObjectRef[Any]]:
    owner.add_table.remote("empty", schema.empty_table())
    (refs,) = ray.get(owner.take_refs.remote(["empty"]))
    return list(refs)


def _start_owner(node: str, name: str, namespace: str) -> Any:
    options = {
        "name": name,
        "namespace": namespace,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True),
    }
    return ray.remote(TableOwner).options(**options).remote()


def _nodes_of_executors(context: Any) -> list[str]:
    """Return the ids of the Ray nodes of the executors, or the driver's if unknown."""
    infos = context._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001 - not in pyspark's public interface
    hosts = {info.host() for info in infos}
    found = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] in hosts]
    return found or [ray.get_runtime_context().get_node_id()]
