"""Which batches of this session's streaming queries are done, as Spark tells its listeners."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_log = logging.getLogger(__name__)

#: Of so many queries, those that were heard of last.
_MOST_QUERIES: Final = 1_000


class FinishedBatches(StreamingQueryListener):
    """Told by Spark, on a thread of its own; asked by any."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._last: OrderedDict[str, int] = OrderedDict()
        spark.streams.addListener(self)

    def last_of(self, query: str) -> int:
        """The number of the last batch of a query that is done; -1 if none is known to be."""
        with self._lock:
            return self._last.get(query, -1)

    def note(self, query: str, batch: int) -> None:
        """Batch `batch` of a query is done: Spark's call may come later than who waited for its end goes on."""
        with self._lock:
            self._last[query] = max(batch, self._last.get(query, -1))
            self._last.move_to_end(query)
            if len(self._last) > _MOST_QUERIES:
                self._last.popitem(last=False)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Spark's call."""
        _log.info("query %s is started", event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Spark's call behind each batch."""
        progress = event.progress
        self.note(str(progress.id), progress.batchId)
        _log.info("query %s: batch %d took %d ms", progress.id, progress.batchId, progress.batchDuration)

    def onQueryIdle(self, _: object) -> None:  # noqa: N802 - Spark's name
        """Spark's call while a query has nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Spark's call. An error is raised where the program waits for the query; one of a stopped query is none."""
        _log.info("query %s has ended: %s", event.id, event.exception or "it was stopped, or has read all")
