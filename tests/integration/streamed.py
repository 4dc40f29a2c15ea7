"""Streaming queries of tests: what their batches had, how they run, and with what they end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tests.polling import poll_until

#: What a batch may take on a machine that does much else.
PATIENT = 120.0


class Batches:
    """What each batch had: a later run of the same batch takes the place of the earlier one."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[Any, ...]]] = {}
        #: Told the number of each batch, before it is kept.
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
def running(writer: DataStreamWriter, checkpoint: Path) -> Iterator[StreamingQuery]:
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def failure_of(writer: DataStreamWriter, checkpoint: Path) -> str:
    """What a query says that ends with an error."""
    try:
        with running(writer, checkpoint) as query:
            query.awaitTermination(PATIENT)
    except StreamingQueryException as error:
        return str(error)
    raise AssertionError("the query goes on")


def collecting(df: DataFrame, batches: Batches) -> DataStreamWriter:
    return df.writeStream.foreachBatch(batches).trigger(processingTime="200 milliseconds")
