"""SparkBridge, the public interface of this package."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import ray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

from raymq.actors.java import java_environment
from raymq.actors.naming import check_topic
from raymq.client import MessageQueue, Sql, arguments
from raymq.client.client_base import check_connection
from raymq.client.connection import Connection
from raymq.client.errors import ClientClosed, InvalidInput
from raymq.spark_bridge import bounded_read, writer
from raymq.spark_bridge.batch_spans import record_read, write_span
from raymq.spark_bridge.from_refs import HeldTables
from raymq.spark_bridge.offset_ranges import Position, check_on_data_loss, commit
from raymq.spark_bridge.progress_bars import progress_console, task_progress
from raymq.spark_bridge.session_folder import SessionFolder
from raymq.spark_bridge.session_settings import check_user_settings, merge_settings, spark_settings
from raymq.spark_bridge.spark4_source.source_registration import has_data_sources, register_source
from raymq.spark_bridge.spark_application import SparkApplication
from raymq.spark_bridge.spark_logging import log_tail, write_log_settings
from raymq.spark_bridge.spark_placement import Placement, find_placement
from raymq.spark_bridge.to_refs import to_refs
from raymq.spark_bridge.topic_stream import StreamManager, StreamProgress
from raymq.spark_bridge.write_columns import write_columns
from raymq.spark_bridge.writer import SinkColumns, TopicSink, WriteResult
from raymq.storage.closeable import Closeable

_MEMORY = re.compile(r"([0-9]+)([mgt])b?", re.IGNORECASE)
_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class SparkBridge(Closeable):
    """Spark on the cluster's Ray, and the conversions between its DataFrames and topics.

    Starting takes some seconds and prints nothing; Spark's log output is in `log_file` until close(). Only one bridge
    per process may be open at a time. It is a context manager, and closes at interpreter exit at the latest. Its
    methods may be called from several threads, but not while it closes.
    """

    def __init__(
        self,
        mq: Connection,
        executors: int = 1,
        cores: int = 1,
        memory: str = "1g",
        *,
        start_timeout: float = 120.0,
        settings: Mapping[str, str | int | float] | None = None,
    ) -> None:
        """Start Spark.

        Args:
            mq: a connection that reaches Ray (`cluster.start`, or `cluster.connect` with a namespace).
            executors: the number of JVMs that run tasks.
            cores: the number of tasks that each executor runs at a time.
            memory: heap of each executor, such as "512m" or "2g"; Ray must have as much free.
            start_timeout: seconds until Spark must be running.
            settings: further Spark settings by their names, such as "spark.speculation" or "spark.jars.packages".

        Raises:
            InvalidInput: an argument is invalid, or `mq` does not reach Ray.
            JavaNotFound: there is no Java for Spark.
            RayMQError: Spark did not start, or another Spark session is open in this process.
        """
        check_connection(mq)
        if not mq.reaches_ray:
            raise InvalidInput("mq", "a connection that reaches Ray", mq.name_servers)
        for field, number in (("executors", executors), ("cores", cores)):
            arguments.whole(field, number, 1)
        arguments.duration("start_timeout", start_timeout, above=True)
        size = _MEMORY.fullmatch(arguments.text("memory", memory))
        if size is None:
            raise InvalidInput("memory", 'a size such as "512m" or "2g"', memory)
        memory_bytes = int(size[1]) * _UNITS[size[2].lower()]
        users = check_user_settings(settings)

        self._mq = mq
        self._cores = executors * cores
        self._reads: weakref.WeakKeyDictionary[DataFrame, bounded_read.PlannedRead] = weakref.WeakKeyDictionary()
        self._folder: SessionFolder | None = SessionFolder()
        directory = self._folder.path
        self._placement: Placement | None = None
        self._application: SparkApplication | None = None
        self._streams: StreamManager | None = None
        self._tables: HeldTables | None = None
        log_settings, self.log_file = write_log_settings(directory)
        atexit.register(self.close)
        try:
            java = java_environment()
            # Twice the heap, because RayDP requests heap and overhead from Ray.
            self._placement = find_placement(java, 2 * executors * memory_bytes, directory, start_timeout)
            own_settings = spark_settings(
                executors=executors,
                cores=cores,
                memory=f"{size[1]}{size[2].lower()}",
                directory=directory,
                log_settings=log_settings,
                placement=self._placement,
            )
            name = f"raymq-spark-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            merged = merge_settings(own_settings, users)
            self._application = SparkApplication(name, merged, java=java, log=self.log_file, timeout=start_timeout)
            self._streams = StreamManager(self._application.session, mq, self._cores)
            self._tables = HeldTables(self._application.session, self._cores)
            if has_data_sources():
                register_source(self._application.session, mq, tasks=bounded_read.TASKS_PER_CORE * self._cores)
        except BaseException as error:
            if output := log_tail(self.log_file):
                error.add_note(f"last output of Spark:\n{output}")
            self.close()
            raise

    @property
    def spark(self) -> SparkSession:
        """Return the Spark session. Raise ClientClosed after close()."""
        if self._application is None:
            raise ClientClosed("the SparkBridge is closed")
        return self._application.session

    def read(
        self,
        topic: str | Sequence[str],
        start: Position = "earliest",
        end: Position = "latest",
        schema: str | DataType | None = None,
        format: str = "json",  # noqa: A002 - the public name
        *,
        columns: Sequence[str] | None = None,
        tags: str | None = None,
        filter: Sql | None = None,  # noqa: A002 - the public name
        on_data_loss: Literal["error", "skip"] = "error",
        progress: bool = False,
    ) -> DataFrame:
        """Return the messages of one or several topics as a DataFrame.

        It covers the messages from `start` to `end` (not included). This call fixes the offsets, so that every action
        on the DataFrame reads the same messages. Columns: topic, queue (struct of broker and id), offset, message_id,
        unique_key, keys, tags, properties, born_timestamp, store_timestamp, body; docs/spark.md has their types.

        Args:
            topic: the name of a topic, or a list of names.
            start: "earliest", "latest", a time (seconds since 1970, or a datetime with a time zone), "group:NAME" (the
                committed offsets of the group) or {MessageQueue: offset}; queues that are not in the mapping are not
                read.
            end: as `start`.
            schema: DDL text or a StructType. Its columns are decoded from the body and replace `body`; the last column
                is `_corrupt`, which has the body if it could not be decoded.
            format: "json", "msgpack" or "arrow": the format of messages without a content-type property.
            columns: read only these columns, in this order. If neither the body nor a decoded column is among them, the
                brokers do not send bodies.
            tags: read only messages with this tag, or with one of several ("a || b"); the brokers filter them.
            filter: read only messages that match this condition, such as Sql("amount > 3"); the brokers evaluate it.
            on_data_loss: "error" fails the job if messages of the range are missing (retention, a deleted topic, a
                power loss); "skip" reads the remaining messages, and logs the skipped ones as warnings of `raymq.spark`
                in the executors. With "skip" an offset of `start` or `end` that no longer exists is replaced with the
                nearest existing offset.
            progress: show a bar on stderr while an action on the DataFrame reads, if stderr is a terminal.

        Raises:
            TopicNotFound, GroupNotFound, QueueNotFound, OffsetOutOfRange, BrokerUnavailable, InvalidInput.
        """
        selection = bounded_read.select(schema, format, columns, tags, filter)
        console = progress_console() if arguments.flag("progress", progress) else None
        skips, began_ns = check_on_data_loss(on_data_loss), time.time_ns()
        df, reading = bounded_read.read(
            self.spark, self._mq, topic, start, end, selection, self._cores, console, skip_losses=skips
        )
        self._reads[df] = reading
        record_read(self._mq, [topic] if isinstance(topic, str) else topic, reading.ranges, began_ns)
        return df

    def write(
        self,
        df: DataFrame,
        topic: str,
        body: str,
        keys: str | None = None,
        tags: str | None = None,
        properties: str | None = None,
        sharding_key: str | None = None,
        deliver_at: str | None = None,
        delay_level: str | None = None,
        *,
        progress: bool = False,
    ) -> WriteResult:
        """Write every row of `df` as one message of `topic`, in one transaction.

        All messages become visible, or none.

        Args:
            df: any DataFrame of this session.
            topic: an existing topic.
            body: the column of bodies: binary, string (as UTF-8), or struct (as msgpack).
            keys: the column of keys: one text, number, boolean, date or timestamp per row, or a list of them. Rows with
                the same key go to one queue; rows of one partition keep their order there.
            tags: the column of tags (string).
            properties: the column of properties (map<string, string>).
            sharding_key: the column that chooses the queue instead of the (first) key. A producer that sends with the
                same sharding key uses the same queue.
            deliver_at: the column of delivery times: timestamps, or seconds since 1970.
            delay_level: the column of delay levels. The delay begins when the write ends; 0 and null mean no delay.
            progress: show a bar of the finished tasks on stderr, if stderr is a terminal.

        Returns:
            the number of rows and the transaction's name.

        Raises:
            TopicNotFound, BrokerUnavailable, InvalidInput: before any task ran.
            Spark's own error: a task failed, for instance because a row exceeds a limit. No message is visible.
            OutcomeUnknown: a broker was unavailable at the end. Either the write is committed, and the missing messages
                become visible when the broker is available again, or it is unknown whether the write is committed
                (`.committed` says which). Do not write again before `finish_write(error.transaction)` has returned the
                outcome.
            WriteIncomplete: the write is committed, but the staged messages of some rows are lost; the others are
                visible.
        """
        if self._application is None:
            raise ClientClosed("the SparkBridge is closed")
        arguments.instance("df", df, DataFrame)
        check_topic(topic)
        columns = write_columns(df, body, keys, tags, properties, sharding_key, deliver_at, delay_level)
        console = progress_console() if arguments.flag("progress", progress) else None
        group = f"raymq-write-{uuid.uuid4().hex}"
        with task_progress(self.spark.sparkContext, f"write {topic}", group, console):
            with write_span(self._mq, topic) as span:
                written = writer.write(self._mq, df, topic, columns, common=span.common)
                span.rows = written.rows
            return written

    def finish_write(self, transaction: str) -> WriteResult:
        """Return the outcome of a write that raised OutcomeUnknown.

        The call waits until all messages of the write are visible. Any process may call it, also after a crash of the
        writing process. If this process has requested the write's commit, and the write is still undecided, the write
        is committed.

        Args:
            transaction: `.transaction` of the error, or of a WriteResult.

        Raises:
            NotStored: the write was aborted: none of its messages is visible, and none will be. Write again.
            InvalidInput: the write is undecided, and only the process that wrote can commit it: call `abort_write`, and
                write again. Or no broker has a record of it (records are kept for 7 days).
            OutcomeUnknown: a broker is still unavailable.
            WriteIncomplete: some rows are lost, the others are visible.
        """
        return writer.finish_write(self._reached(), arguments.text("transaction", transaction))

    def accept_write(self, transaction: str) -> WriteResult:
        """Accept the loss of rows of a committed write, after WriteIncomplete.

        The write counts as complete afterwards. A stream whose sink raised WriteIncomplete continues after this batch
        when it is started again.

        Args:
            transaction: `.transaction` of the error.

        Returns:
            the number of rows that are stored. Neither these rows nor the lost rows are written again.

        Raises:
            OutcomeUnknown: a broker is unavailable, so it is unknown whether its rows are lost.
            NotStored, InvalidInput: as `finish_write`.
            WriteIncomplete: further rows were lost in the meantime; call it again.
        """
        return writer.accept_write(self._reached(), arguments.text("transaction", transaction))

    def abort_write(self, transaction: str) -> None:
        """Abort a write that is not committed; none of its messages becomes visible.

        Args:
            transaction: as in `finish_write`.

        Raises:
            InvalidInput: the write is committed, or no broker has a record of it.
            BrokerUnavailable: the broker that keeps its record is unavailable.
        """
        writer.abort_write(self._reached(), arguments.text("transaction", transaction))

    def sink(
        self,
        topic: str,
        body: str = "value",
        keys: str | None = None,
        tags: str | None = None,
        properties: str | None = None,
        sharding_key: str | None = None,
        deliver_at: str | None = None,
        delay_level: str | None = None,
        *,
        name: str = "",
    ) -> TopicSink:
        """Return a function for `foreachBatch` that writes each batch exactly once.

        It writes each batch of a streaming query into `topic`. A batch that Spark runs again after a failure is not
        written again. The arguments are those of `write`.

        Args:
            name: distinguishes the sinks of one query that write into one topic. It must stay the same over restarts of
                the query.

        Raises:
            InvalidInput: the topic or the name is invalid.
        """
        columns = SinkColumns(body, keys, tags, properties, sharding_key, deliver_at, delay_level)
        return TopicSink(self._reached(), check_topic(topic), columns, arguments.text("name", name) if name else "")

    def _reached(self) -> Connection:
        if self._application is None:
            raise ClientClosed("the SparkBridge is closed")
        return self._mq

    def stream(
        self,
        topics: str | Sequence[str],
        query: str,
        start: Position = "latest",
        max_offsets_per_batch: int | None = None,
        schema: str | DataType | None = None,
        format: str = "json",  # noqa: A002 - the public name
        *,
        columns: Sequence[str] | None = None,
        tags: str | None = None,
        filter: Sql | None = None,  # noqa: A002 - the public name
        on_data_loss: Literal["error", "skip"] = "error",
        progress: bool = False,
    ) -> DataFrame:
        """Return the messages of topics as a streaming DataFrame.

        It has the columns of `read`. The brokers store which messages each batch reads, under the name `query` and
        Spark's own ids of the query and the batch. So a query that is restarted with its checkpointLocation continues
        at its last offsets, and a batch that is run again reads the same messages. With a new checkpointLocation the
        query begins at `start`.

        Args:
            topics: a topic, or several. A topic that is added later begins at the `start` of that call.
            query: the stream's name: 1 to 64 letters, digits, _ or -. The streams of one query must have different
                names.
            start: the position to begin at, as in `read`; a mapping must name every queue. This call fixes the offsets:
                with "latest" the stream reads the messages that are stored after the call.
            max_offsets_per_batch: the largest number of messages that a batch processes, over all queues.
            schema, format, columns, tags, filter: as in `read`.
            on_data_loss: "error" ends the query if it cannot continue without skipping messages: a topic was deleted or
                recreated, retention deleted unread messages, or a power loss destroyed some. "skip" continues with the
                remaining messages; `progress` reports what was skipped, and warnings of `raymq.spark` report messages
                that were missing while they were read.
            progress: show the stream's position in a bar on stderr while a query of it runs, if stderr is a terminal.

        Raises:
            TopicNotFound, GroupNotFound, QueueNotFound, OffsetOutOfRange, BrokerUnavailable, InvalidInput.
            In the query: StreamBroken if it cannot continue without skipping messages, as the text of Spark's
                StreamingQueryException.
        """
        selection = bounded_read.select(schema, format, columns, tags, filter)
        console = progress_console() if arguments.flag("progress", progress) else None
        return self._open_streams().open(
            *(topics, query, start, max_offsets_per_batch, selection, console),
            skip_losses=check_on_data_loss(on_data_loss),
        )

    def progress(self, query: str) -> dict[MessageQueue, StreamProgress]:
        """Return the position of a stream in each queue.

        It is the position of the query that planned a batch most recently. All messages before `offset` are done; `end`
        is the offset after the queue's last message, `lag` the number of messages between the two; `skipped` and
        `skip_reason` report what `on_data_loss="skip"` has skipped. A batch counts as done when it has ended in this
        session, otherwise when the next batch is planned.

        Args:
            query: the stream's name. Another process may read the stream.

        Raises:
            NotFoundError: the stream does not exist, or no batch of it is planned yet.
            BrokerUnavailable, InvalidInput.
        """
        return self._open_streams().progress(query)

    def run_available_now(self, start_query: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Read all available messages in several batches, and return the ended query.

        Spark 3.5 ends a query of this source with `trigger(availableNow=True)` after one batch. This method restarts
        the query until it has read all messages that were in the queues when the first batch was planned.

        Args:
            start_query: starts a query of streams of this bridge, with `trigger(availableNow=True)` and always the same
                checkpointLocation, and returns it.

        Raises:
            InvalidInput: the returned object is not a query of a stream of this bridge.
            Spark's StreamingQueryException: a batch failed. Another call continues at this batch.
        """
        return self._open_streams().run_available_now(start_query)

    def to_refs(self, df: DataFrame) -> tuple[list[ray.ObjectRef[Any]], Callable[[], None]]:
        """Return the rows of `df` as Arrow tables in Ray's object store: (references, release).

        The tables have the DataFrame's columns and about 32 MB each, in the order of its partitions, on the nodes of
        the executors. They outlast the bridge. They are freed when no process has their references, or at once by
        `release()`; afterwards a reference is invalid. Without `release()` small actors that own the tables run until
        the program ends. docs/spark.md has the types.

        Args:
            df: any DataFrame of this session. One without rows becomes one table without rows.

        Raises:
            InvalidInput: a column has a type that Arrow tables do not have.
            RayMQError: a node was lost during the call.
            Spark's own error: a task failed.
        """
        self._open_tables()
        arguments.instance("df", df, DataFrame)
        return to_refs(df)

    def from_refs(self, refs: Sequence[ray.ObjectRef[Any]], schema: pa.Schema | StructType | str) -> DataFrame:
        """Return the rows of Arrow tables in Ray's object store as a DataFrame.

        The rows are in the order of the references. Tasks get the tables from the object store when the DataFrame is
        used. The tables are held while this DataFrame, or one derived from it, exists, and until the bridge closes at
        most.

        Args:
            refs: references of Arrow tables, such as those of `ray.data.Dataset.to_arrow_refs()`; an empty list gives a
                DataFrame without rows.
            schema: the schema of all tables: an Arrow schema, a StructType or DDL text. In the DataFrame every column
                may have nulls.

        Raises:
            InvalidInput: a column has a type that DataFrames do not have, or `refs` are not references. In Spark's
                error, when the DataFrame is used: a table has another schema.
        """
        return self._open_tables().open(refs, schema)

    def _open_tables(self) -> HeldTables:
        if self._application is None or self._tables is None:
            raise ClientClosed("the SparkBridge is closed")
        return self._tables

    def _open_streams(self) -> StreamManager:
        if self._application is None or self._streams is None:
            raise ClientClosed("the SparkBridge is closed")
        return self._streams

    def offsets(self, df: DataFrame) -> Mapping[MessageQueue, tuple[int, int]]:
        """Return the offsets that a DataFrame from `read` covers: {queue: (start, end)}.

        The end is not included.

        Raises:
            InvalidInput: `df` is not a DataFrame that `read` of this bridge returned (a DataFrame derived from it is
                another one).
        """
        return {each.queue: (each.start, each.end) for each in self._reading(df).ranges}

    def commit(self, df: DataFrame, group: str) -> None:
        """Commit the end offsets of a DataFrame from `read` for a consumer group.

        The brokers store the offset of each queue. Call it when the messages are processed: after a failure
        `start="group:NAME"` reads messages again that were not committed, and none that were. It may be repeated.

        Args:
            df: a DataFrame that `read` of this bridge returned.
            group: the name of the group; it is created if it does not exist.

        Raises:
            InvalidInput: `df` is not what `read` returned, or the group's name is invalid.
            BrokerUnavailable: a broker is unavailable; the other brokers have stored the offsets.
            RayMQError: messages that were read no longer exist: a topic was deleted and recreated, or a power loss
                destroyed some.
        """
        reading = self._reading(df)
        commit(self._mq, reading.ranges, reading.planned, group)

    def _reading(self, df: DataFrame) -> bounded_read.PlannedRead:
        reading = self._reads.get(df)
        if reading is None:
            raise InvalidInput("df", "a DataFrame that this bridge's read() returned", type(df).__name__)
        return reading

    def close(self) -> None:
        """Stop Spark and all its processes. May be repeated.

        DataFrames of this session cannot be used afterwards.
        """
        atexit.unregister(self.close)
        application, self._application = self._application, None
        streams, self._streams = self._streams, None
        tables, self._tables = self._tables, None
        placement, self._placement = self._placement, None
        folder, self._folder = self._folder, None
        with contextlib.ExitStack() as stack:
            if folder is not None:
                stack.callback(folder.close)
            if placement is not None:
                stack.callback(placement.close)
            if application is not None:
                stack.callback(application.close)
            if tables is not None:
                stack.callback(tables.close)
            if streams is not None:
                stack.callback(streams.close)
