"""`format("raymq")`: Spark 4.2's door. Importing this needs Spark 4.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.schema import message_schema
from raymq.spark_bridge.source.columns import checked_columns, selected
from raymq.spark_bridge.source.options import read_options, sink_options, stream_options, write_options
from raymq.spark_bridge.source.reading import TopicReader, TopicStreamReader
from raymq.spark_bridge.source.writing import TopicStreamWriter, TopicWriter

#: The name of the format.
NAME = "raymq"


class TopicSource(DataSource):  # type: ignore[misc]
    """Spark makes one of it for each read and write, with the options that the user gave."""

    #: The options of who gives none; those of a session are in a class that is made for it.
    defaults: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return NAME

    def schema(self) -> StructType:
        """The columns of a read that was given no schema."""
        return message_schema()

    def reader(self, schema: StructType) -> TopicReader:
        """Spark's call for `spark.read`. InvalidInput."""
        options = read_options(self._options, self.defaults)
        return TopicReader(options, selected(schema, options.format, options.tags, options.filter))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        """Spark's call for `spark.readStream`. InvalidInput."""
        options = stream_options(self._options, self.defaults)
        return TopicStreamReader(options, selected(schema, options.format, options.tags, options.filter))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Spark's call for `df.write`. Raises as `SparkBridge.write` before anything runs."""
        _check_appends("mode", overwrite)
        return TopicWriter(write_options(self._options, self.defaults), checked_columns(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        """Spark's call for `df.writeStream`. InvalidInput."""
        _check_appends("outputMode", overwrite)
        return TopicStreamWriter(sink_options(self._options, self.defaults), checked_columns(schema))


def _check_appends(field: str, overwrite: Any) -> None:
    if overwrite:
        raise InvalidInput(field, "append: what is in a topic stays there", "overwrite")
