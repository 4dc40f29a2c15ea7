"""Helpers for streaming queries: collect their batches, run them, and read their failures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tests.polling import poll_until

#: Seconds that a batch may take on a busy machine.
PATIENT = 120.0


class Batches:
    """The rows of each batch; a later run of the same batch replaces the earlier one."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[Any, ...]]] = {}
        #: Called with the number of each batch before its rows are stored.
        self.before: Callable[[int], None] = lambda _: None

    def __call__(self, df: DataFrame, batch: int) -> None:
        found = [tuple(row) for row in df.collect()]
        self.before(batch)
        self.rows[batch] = found

    @property
    def all(self) -> list[tuple[Any, ...]]:
        return sorted(row for batch in list(self.rows.values()) for row in batch)

    def wait_for(self, count: int, query: StreamingQuery) -> None:
        def there() -> bool:
            if query.exception() is not None:
                raise query.exception()
            return len(self.all) >= count

        poll_until(there, PATIENT, f"{count} rows")


@contextlib.contextmanager
def running_query(writer: DataStreamWriter, checkpoint: Path) -> Iterator[StreamingQuery]:
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def query_failure(writer: DataStreamWriter, checkpoint: Path) -> str:
    """Run a query that must fail, and return the text of its error."""
    try:
        with running_query(writer, checkpoint) as query:
            query.awaitTermination(PATIENT)
    except StreamingQueryException as error:
        return str(error)
    raise AssertionError("the query goes on")


def collect_batches(df: DataFrame, batches: Batches) -> DataStreamWriter:
    return df.writeStream.foreachBatch(batches).trigger(processingTime="200 milliseconds")
