"""SparkBridge: the public face of this room."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from raymq.actors.java import java_environment
from raymq.client import MessageQueue, arguments
from raymq.client.closing import Closing
from raymq.client.connection import Connection
from raymq.client.errors import ClientClosed, InvalidInput
from raymq.spark_bridge import reader, writer
from raymq.spark_bridge.launch import SparkApplication
from raymq.spark_bridge.placement import Placement, place
from raymq.spark_bridge.quiet import last_lines, write_log_settings
from raymq.spark_bridge.ranges import Position, Range
from raymq.spark_bridge.settings import spark_settings
from raymq.spark_bridge.writer import WriteResult

_MEMORY = re.compile(r"([0-9]+)([mgt])b?", re.IGNORECASE)
_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class SparkBridge(Closing):
    """Spark on the cluster's Ray, and the way between its DataFrames and topics.

    Starting takes some seconds and prints nothing; what Spark has to say is in `log_file` until close(). One bridge
    per process at a time. A context manager; ends at interpreter exit at the latest. Its methods may be called from
    several threads, but not while it closes.
    """

    def __init__(
        self, mq: Connection, executors: int = 1, cores: int = 1, memory: str = "1g", *, start_timeout: float = 120.0
    ) -> None:
        """Start Spark.

        Args:
            mq: a connection that reaches Ray (`cluster.start`, or `cluster.connect` with a namespace).
            executors: how many JVMs run tasks.
            cores: how many tasks each runs at a time.
            memory: heap of each executor, such as "512m" or "2g"; Ray must have as much free.
            start_timeout: seconds until Spark must be up.

        Raises:
            InvalidInput: an argument breaks a rule, or `mq` does not reach Ray.
            JavaNotFound: there is no Java for Spark.
            RayMQError: Spark did not start, or there is one in this process already.
        """
        if not mq.reaches_ray:
            raise InvalidInput("mq", "a connection that reaches Ray", mq.name_servers)
        for field, number in (("executors", executors), ("cores", cores)):
            arguments.whole(field, number, 1)
        arguments.duration("start_timeout", start_timeout, above=True)
        size = _MEMORY.fullmatch(arguments.text("memory", memory))
        if size is None:
            raise InvalidInput("memory", 'a size such as "512m" or "2g"', memory)
        memory_bytes = int(size[1]) * _UNITS[size[2].lower()]

        self._mq = mq
        self._cores = executors * cores
        self._reads: weakref.WeakKeyDictionary[DataFrame, list[Range]] = weakref.WeakKeyDictionary()
        self._directory = Path(tempfile.mkdtemp(prefix="raymq-spark-"))
        self._placement: Placement | None = None
        self._application: SparkApplication | None = None
        log_settings, self.log_file = write_log_settings(self._directory)
        atexit.register(self.close)
        try:
            java = java_environment()
            # Twice the heap: RayDP asks Ray for heap and overhead.
            self._placement = place(java, 2 * executors * memory_bytes, self._directory, start_timeout)
            settings = spark_settings(
                executors=executors,
                cores=cores,
                memory=f"{size[1]}{size[2].lower()}",
                directory=self._directory,
                log_settings=log_settings,
                placement=self._placement,
            )
            name = f"raymq-spark-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            self._application = SparkApplication(name, settings, java=java, log=self.log_file, timeout=start_timeout)
        except BaseException as error:
            if said := last_lines(self.log_file):
                error.add_note(f"what Spark said last:\n{said}")
            self.close()
            raise

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        if self._application is None:
            raise ClientClosed("the SparkBridge is closed")
        return self._application.session

    def read(
        self,
        topic: str,
        start: Position = "earliest",
        end: Position = "latest",
        schema: str | DataType | None = None,
        format: str = "json",  # noqa: A002 - the public name
    ) -> DataFrame:
        """Return the messages of a topic from `start` to `end` (not included) as a DataFrame.

        Which messages these are is fixed by this call, so that every action on the DataFrame sees the same ones.
        Columns: topic, queue (struct of broker and id), offset, message_id, unique_key, keys, tags, properties,
        born_timestamp, store_timestamp, body; docs/spark.md has their types.

        Args:
            topic: its name.
            start: "earliest", "latest", seconds since the epoch, "group:NAME" (where the group goes on) or
                {MessageQueue: offset}; a mapping leaves out the queues that it does not name.
            end: likewise.
            schema: DDL text or a StructType. Its columns take the place of `body`, decoded; `_corrupt` is last and
                has the body where it could not be decoded.
            format: "json", "msgpack" or "arrow": the format of messages without a content-type property.

        Raises:
            TopicNotFound, GroupNotFound, QueueNotFound, OffsetOutOfRange, BrokerUnavailable, InvalidInput.
        """
        df, ranges = reader.read(self.spark, self._mq, topic, start, end, schema, format, self._cores)
        self._reads[df] = ranges
        return df

    def write(
        self,
        df: DataFrame,
        topic: str,
        body: str,
        keys: str | None = None,
        tags: str | None = None,
        properties: str | None = None,
    ) -> WriteResult:
        """Write every row of `df` as one message of `topic`; all of them become visible, or none.

        Args:
            df: any DataFrame of this session.
            topic: a topic that exists.
            body: the column of bodies: binary, string (as UTF-8), or struct (as msgpack).
            keys: the column of keys: one text, number, boolean, date or timestamp a row, or a list of them.
            tags: the column of tags (string).
            properties: the column of properties (map<string, string>).

        Returns:
            the number of rows and the transaction's name.

        Raises:
            TopicNotFound, BrokerUnavailable, InvalidInput: before anything ran.
            Spark's own error: a task failed, for instance because a row breaks a limit. Nothing is visible.
        """
        if self._application is None:
            raise ClientClosed("the SparkBridge is closed")
        arguments.instance("df", df, DataFrame)
        return writer.write(self._mq, df, topic, body, keys, tags, properties)

    def offsets(self, df: DataFrame) -> Mapping[MessageQueue, tuple[int, int]]:
        """Return which messages a DataFrame from `read` covers: {queue: (start, end)}, the end not included.

        Raises:
            InvalidInput: `df` is not what `read` of this bridge returned (a DataFrame made from it is another one).
        """
        ranges = self._reads.get(df)
        if ranges is None:
            raise InvalidInput("df", "a DataFrame that this bridge's read() returned", type(df).__name__)
        return {each.queue: (each.start, each.end) for each in ranges}

    def close(self) -> None:
        """Stop Spark and all its processes. DataFrames of this session cannot be used any more. May be repeated."""
        atexit.unregister(self.close)
        application, self._application = self._application, None
        placement, self._placement = self._placement, None
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            if placement is not None:
                stack.callback(placement.close)
            if application is not None:
                stack.callback(application.close)
