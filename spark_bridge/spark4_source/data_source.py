"""The data source of `format("raymq")`. Importing this module requires Spark 4.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.dataframe_schema import message_schema
from raymq.spark_bridge.spark4_source.source_columns import check_columns, selection_of_schema
from raymq.spark_bridge.spark4_source.source_options import read_options, sink_options, stream_options, write_options
from raymq.spark_bridge.spark4_source.source_reader import TopicReader, TopicStreamReader
from raymq.spark_bridge.spark4_source.source_writer import TopicStreamWriter, TopicWriter

#: The name of the format.
NAME = "raymq"


class TopicSource(DataSource):  # type: ignore[misc]
    """The data source; Spark creates one for each read and write, with the user's options."""

    #: The options that the user does not give. A session has its own in a subclass that is made for it.
    defaults: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a read without a schema."""
        return message_schema()

    def reader(self, schema: StructType) -> TopicReader:
        """Create the reader of `spark.read`. Raise InvalidInput if an option is invalid."""
        options = read_options(self._options, self.defaults)
        return TopicReader(options, selection_of_schema(schema, options.format, options.tags, options.filter))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        """Create the reader of `spark.readStream`. Raise InvalidInput if an option is invalid."""
        options = stream_options(self._options, self.defaults)
        return TopicStreamReader(options, selection_of_schema(schema, options.format, options.tags, options.filter))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Create the writer of `df.write`.

        Raises as `SparkBridge.write` before any task runs.
        """
        _check_appends("mode", overwrite)
        return TopicWriter(write_options(self._options, self.defaults), check_columns(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        """Create the writer of `df.writeStream`. Raise InvalidInput if an option is invalid."""
        _check_appends("outputMode", overwrite)
        return TopicStreamWriter(sink_options(self._options, self.defaults), check_columns(schema))


def _check_appends(field: str, overwrite: Any) -> None:
    if overwrite:
        raise InvalidInput(field, "append: what is in a topic stays there", "overwrite")
