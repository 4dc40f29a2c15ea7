"""SparkBridge: the public face of this room."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
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
from raymq.spark_bridge import reader, writer
from raymq.spark_bridge.from_refs import Tables
from raymq.spark_bridge.launch import SparkApplication
from raymq.spark_bridge.placement import Placement, place
from raymq.spark_bridge.progress_bars import tasks_shown, terminal
from raymq.spark_bridge.quiet import last_lines, write_log_settings
from raymq.spark_bridge.ranges import Position, check_on_data_loss, commit
from raymq.spark_bridge.session_folder import SessionFolder
from raymq.spark_bridge.settings import spark_settings, users_settings, with_users_settings
from raymq.spark_bridge.sink import TopicSink, WrittenColumns
from raymq.spark_bridge.source.register import has_data_sources, register_source
from raymq.spark_bridge.stream import StreamProgress, Streams
from raymq.spark_bridge.to_refs import to_refs
from raymq.spark_bridge.write_columns import write_columns
from raymq.spark_bridge.writer import WriteResult
from raymq.storage.closing import Closing

_MEMORY = re.compile(r"([0-9]+)([mgt])b?", re.IGNORECASE)
_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class SparkBridge(Closing):
    """Spark on the cluster's Ray, and the way between its DataFrames and topics.

    Starting takes some seconds and prints nothing; what Spark has to say is in `log_file` until close(). One bridge
    per process at a time. A context manager; ends at interpreter exit at the latest. Its methods may be called from
    several threads, but not while it closes.
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
            executors: how many JVMs run tasks.
            cores: how many tasks each runs at a time.
            memory: heap of each executor, such as "512m" or "2g"; Ray must have as much free.
            start_timeout: seconds until Spark must be up.
            settings: more settings of Spark's, by their names, such as "spark.speculation" or "spark.jars.packages".

        Raises:
            InvalidInput: an argument breaks a rule, or `mq` does not reach Ray.
            JavaNotFound: there is no Java for Spark.
            RayMQError: Spark did not start, or there is one in this process already.
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
        users = users_settings(settings)

        self._mq = mq
        self._cores = executors * cores
        self._reads: weakref.WeakKeyDictionary[DataFrame, reader.Reading] = weakref.WeakKeyDictionary()
        self._folder: SessionFolder | None = SessionFolder()
        directory = self._folder.path
        self._placement: Placement | None = None
        self._application: SparkApplication | None = None
        self._streams: Streams | None = None
        self._tables: Tables | None = None
        log_settings, self.log_file = write_log_settings(directory)
        atexit.register(self.close)
        try:
            java = java_environment()
            # Twice the heap: RayDP asks Ray for heap and overhead.
            self._placement = place(java, 2 * executors * memory_bytes, directory, start_timeout)
            own_settings = spark_settings(
                executors=executors,
                cores=cores,
                memory=f"{size[1]}{size[2].lower()}",
                directory=directory,
                log_settings=log_settings,
                placement=self._placement,
            )
            name = f"raymq-spark-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            made = with_users_settings(own_settings, users)
            self._application = SparkApplication(name, made, java=java, log=self.log_file, timeout=start_timeout)
            self._streams = Streams(self._application.session, mq, self._cores)
            self._tables = Tables(self._application.session, self._cores)
            if has_data_sources():
                register_source(self._application.session, mq, tasks=reader.TASKS_PER_CORE * self._cores)
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
        """Return the messages of a topic, or of several, from `start` to `end` (not included) as a DataFrame.

        Which messages these are is fixed by this call, so that every action on the DataFrame sees the same ones.
        Columns: topic, queue (struct of broker and id), offset, message_id, unique_key, keys, tags, properties,
        born_timestamp, store_timestamp, body; docs/spark.md has their types.

        Args:
            topic: its name, or a list of names.
            start: "earliest", "latest", a time (seconds since 1970, or a datetime with a time zone), "group:NAME"
                (where the group goes on) or {MessageQueue: offset}, which leaves out the queues that it does not name.
            end: likewise.
            schema: DDL text or a StructType. Its columns take the place of `body`, decoded; `_corrupt` is last and
                has the body where it could not be decoded.
            format: "json", "msgpack" or "arrow": the format of messages without a content-type property.
            columns: only these, in this order. Where neither the body nor what is decoded from it is among them, bodies
                do not leave the brokers.
            tags: only messages with this tag, or one of several ("a || b"); the brokers leave out the others.
            filter: only messages that this condition is true of, such as Sql("amount > 3"); the brokers evaluate it.
            on_data_loss: "error" fails the job where messages that it should read are gone (retention, a deleted
                topic, a loss of power); "skip" reads what is left, and logs what it skipped as warnings of
                `raymq.spark` in the executors. An offset of `start` or `end` that is gone stands for the nearest one.
            progress: show a bar on stderr while an action on the DataFrame reads, if that is a terminal.

        Raises:
            TopicNotFound, GroupNotFound, QueueNotFound, OffsetOutOfRange, BrokerUnavailable, InvalidInput.
        """
        selection = reader.select(schema, format, columns, tags, filter)
        console = terminal() if arguments.flag("progress", progress) else None
        skips = check_on_data_loss(on_data_loss)
        df, reading = reader.read(
            self.spark, self._mq, topic, start, end, selection, self._cores, console, skip_losses=skips
        )
        self._reads[df] = reading
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
        """Write every row of `df` as one message of `topic`; all of them become visible, or none.

        Args:
            df: any DataFrame of this session.
            topic: a topic that exists.
            body: the column of bodies: binary, string (as UTF-8), or struct (as msgpack).
            keys: the column of keys: one text, number, boolean, date or timestamp a row, or a list of them. Rows of a
                key go to one queue, those of a partition in their order.
            tags: the column of tags (string).
            properties: the column of properties (map<string, string>).
            sharding_key: the column that chooses the queue in place of the (first) key; a producer that sends with the
                same sharding key sends there, too.
            deliver_at: the column of times to deliver at: timestamps, or seconds since 1970.
            delay_level: the column of delay levels, which begin with the write's end; 0 and null are at once.
            progress: show a bar of the tasks that have ended on stderr, if that is a terminal.

        Returns:
            the number of rows and the transaction's name.

        Raises:
            TopicNotFound, BrokerUnavailable, InvalidInput: before anything ran.
            Spark's own error: a task failed, for instance because a row breaks a limit. Nothing is visible.
            OutcomeUnknown: a broker was away at the end. The write is committed, and what is missing becomes visible
                when that is back; or it is not known whether it is (`.committed` says which). Do not write again before
                `finish_write(error.transaction)` has told.
            WriteIncomplete: it is committed, and what was staged of some rows is lost; the others are visible.
        """
        if self._application is None:
            raise ClientClosed("the SparkBridge is closed")
        arguments.instance("df", df, DataFrame)
        check_topic(topic)
        columns = write_columns(df, body, keys, tags, properties, sharding_key, deliver_at, delay_level)
        console = terminal() if arguments.flag("progress", progress) else None
        group = f"raymq-write-{uuid.uuid4().hex}"
        with tasks_shown(self.spark.sparkContext, f"write {topic}", group, console):
            return writer.write(self._mq, df, topic, columns)

    def finish_write(self, transaction: str) -> WriteResult:
        """Return what a write has become that raised OutcomeUnknown; waits until all of it is visible.

        Any process may ask, also after the one that wrote has died. One whose commit this process has asked for, and
        which is not decided, is committed.

        Args:
            transaction: `.transaction` of the error, or of a WriteResult.

        Raises:
            NotStored: it was aborted: nothing of it is visible, nor will be. Write again.
            InvalidInput: it is not decided, and only the process that wrote can commit it: `abort_write`, and write
                again. Or no broker knows it (any more, after 7 days).
            OutcomeUnknown: a broker is still away. WriteIncomplete: some rows are lost, the others are visible.
        """
        return writer.finish_write(self._reached(), arguments.text("transaction", transaction))

    def accept_write(self, transaction: str) -> WriteResult:
        """Do without the rows of a committed write that are lost, after WriteIncomplete: it counts as whole now.

        A stream whose sink has raised that goes on behind the batch when it is started again.

        Args:
            transaction: `.transaction` of the error.

        Returns:
            how many rows are there. They are not written again; those that are lost are not either.

        Raises:
            OutcomeUnknown: a broker is away: nobody knows yet whether its rows are lost. NotStored, InvalidInput: as
                `finish_write`. WriteIncomplete: more rows were lost meanwhile; call it again.
        """
        return writer.accept_write(self._reached(), arguments.text("transaction", transaction))

    def abort_write(self, transaction: str) -> None:
        """Give up a write that is not committed: nothing of it is visible, nor will be when this returns.

        Args:
            transaction: as in `finish_write`.

        Raises:
            InvalidInput: it is committed, or no broker knows it.
            BrokerUnavailable: the broker that knows is away.
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
        """Return what writes each batch of a streaming query into `topic`, exactly once: for `foreachBatch`.

        A batch that Spark runs again, after whatever died, is not written again. The arguments are those of `write`.

        Args:
            name: tells the sinks of one query into one topic apart, where there are several. It has to stay the same
                over restarts of the query.

        Raises:
            InvalidInput: no topic or sink may be called so.
        """
        columns = WrittenColumns(body, keys, tags, properties, sharding_key, deliver_at, delay_level)
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
        """Return the messages of topics, as they come, as a streaming DataFrame. It has the columns of `read`.

        Which messages each batch reads is kept by the brokers, under the name `query` and Spark's own ids of the query
        and the batch: a query that is started again with its checkpointLocation goes on where it stood, and a batch
        that is run again reads the same messages. With a new checkpointLocation it begins where `start` says.

        Args:
            topics: a topic, or several. One that is added later begins where `start` says then.
            query: the stream's name: 1 to 64 letters, digits, _ or -. Different streams of one query have different
                ones.
            start: where it begins, as in `read`; a mapping has to name every queue. It is fixed by this call: with
                "latest" it is read what is stored after it.
            max_offsets_per_batch: how many messages a batch looks at at most, over all queues.
            schema, format, columns, tags, filter: as in `read`.
            on_data_loss: "error" ends the query where it cannot go on without skipping messages: a topic was deleted
                or made anew, retention was faster, a loss of power took some. "skip" goes on with what is left;
                `progress` says what was skipped, and warnings of `raymq.spark` what was gone while it was read.
            progress: show a bar on stderr of how far it is while a query of it runs, if that is a terminal.

        Raises:
            TopicNotFound, GroupNotFound, QueueNotFound, OffsetOutOfRange, BrokerUnavailable, InvalidInput.
            In the query: StreamBroken where it cannot go on without leaving something out, as the text of Spark's
            StreamingQueryException.
        """
        selection = reader.select(schema, format, columns, tags, filter)
        console = terminal() if arguments.flag("progress", progress) else None
        return self._open_streams().open(
            *(topics, query, start, max_offsets_per_batch, selection, console),
            skip_losses=check_on_data_loss(on_data_loss),
        )

    def progress(self, query: str) -> dict[MessageQueue, StreamProgress]:
        """Return how far a stream is in each queue, for the query that has planned a batch last.

        All messages before `offset` are done; `end` is the offset behind the queue's last message, `lag` what is
        between the two; `skipped` and `skip_reason` say what `on_data_loss="skip"` has skipped. A batch counts as done
        when it has ended in this session, else when the next one is planned.

        Args:
            query: the stream's name. It may be read in another process.

        Raises:
            NotFoundError: there is no such stream, or no batch of it is planned yet. BrokerUnavailable, InvalidInput.
        """
        return self._open_streams().progress(query)

    def run_available_now(self, start_query: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Read what is there now, in as many batches as it takes, and return the query when it has ended.

        Spark 3.5 ends a query of this source with `trigger(availableNow=True)` behind one batch. This starts it again
        and again, until all is done that was in the queues when the first batch was planned.

        Args:
            start_query: starts a query of streams of this bridge, with `trigger(availableNow=True)` and always the same
                checkpointLocation, and returns it.

        Raises:
            InvalidInput: what it returns is no query of a stream of this bridge.
            Spark's StreamingQueryException: a batch failed. Called again it goes on there.
        """
        return self._open_streams().run_available_now(start_query)

    def to_refs(self, df: DataFrame) -> tuple[list[ray.ObjectRef[Any]], Callable[[], None]]:
        """Return the rows of `df` as Arrow tables in Ray's object store: (references, release).

        The tables have the DataFrame's columns and are of about 32 MB each, in the order of its partitions, on the
        nodes of the executors. They stay when the bridge closes, until nobody has their references, or until
        `release()`, which frees them at once; a reference is good for nothing then. Without it small actors of them
        stay until the program ends. docs/spark.md has the types.

        Args:
            df: any DataFrame of this session. One without rows becomes one table without rows.

        Raises:
            InvalidInput: a column is of a type that Arrow tables do not have. RayMQError: a node was lost meanwhile.
            Spark's own error: a task failed.
        """
        self._open_tables()
        arguments.instance("df", df, DataFrame)
        return to_refs(df)

    def from_refs(self, refs: Sequence[ray.ObjectRef[Any]], schema: pa.Schema | StructType | str) -> DataFrame:
        """Return the rows of Arrow tables in Ray's object store as a DataFrame, in the order of the references.

        Tasks take the tables from the object store when the DataFrame is used. They are held as long as this DataFrame,
        or one that was made from it, is there, and until the bridge closes at most.

        Args:
            refs: references of Arrow tables, such as those of `ray.data.Dataset.to_arrow_refs()`; none is a DataFrame
                without rows.
            schema: that of all tables: an Arrow schema, a StructType or DDL text. In the DataFrame every column may
                have nulls.

        Raises:
            InvalidInput: a column is of a type that DataFrames do not have, or `refs` are no references. In Spark's
                error, when the DataFrame is used: a table is of another schema.
        """
        return self._open_tables().open(refs, schema)

    def _open_tables(self) -> Tables:
        if self._application is None or self._tables is None:
            raise ClientClosed("the SparkBridge is closed")
        return self._tables

    def _open_streams(self) -> Streams:
        if self._application is None or self._streams is None:
            raise ClientClosed("the SparkBridge is closed")
        return self._streams

    def offsets(self, df: DataFrame) -> Mapping[MessageQueue, tuple[int, int]]:
        """Return which messages a DataFrame from `read` covers: {queue: (start, end)}, the end not included.

        Raises:
            InvalidInput: `df` is not what `read` of this bridge returned (a DataFrame made from it is another one).
        """
        return {each.queue: (each.start, each.end) for each in self._reading(df).ranges}

    def commit(self, df: DataFrame, group: str) -> None:
        """Let a consumer group go on where a DataFrame from `read` ends, in each of its queues; the brokers keep that.

        To be called when the messages are done: what comes before it is read again by `start="group:NAME"` after a
        failure, what comes behind is not. May be repeated.

        Args:
            df: what `read` of this bridge returned.
            group: its name; made if there is none.

        Raises:
            InvalidInput: `df` is not what `read` returned, or no group may be called so.
            BrokerUnavailable: a broker is not there; the others know it.
            RayMQError: what was read is not there any more: a topic was made anew, or a loss of power took some of it.
        """
        reading = self._reading(df)
        commit(self._mq, reading.ranges, reading.planned, group)

    def _reading(self, df: DataFrame) -> reader.Reading:
        reading = self._reads.get(df)
        if reading is None:
            raise InvalidInput("df", "a DataFrame that this bridge's read() returned", type(df).__name__)
        return reading

    def close(self) -> None:
        """Stop Spark and all its processes. DataFrames of this session cannot be used any more. May be repeated."""
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
