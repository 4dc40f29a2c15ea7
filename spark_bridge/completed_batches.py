"""Record the completed batches of this session's streaming queries, as Spark's listener reports them."""

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

#: The number of queries that are kept; the ones reported most recently stay.
_MAX_QUERIES: Final = 1_000


class CompletedBatches(StreamingQueryListener):
    """The last completed batch of each query.

    Spark calls it on a thread of its own; any thread may read it.
    """

    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._last: OrderedDict[str, int] = OrderedDict()
        spark.streams.addListener(self)

    def last_completed(self, query: str) -> int:
        """Return the number of the query's last completed batch, -1 if none is recorded."""
        with self._lock:
            return self._last.get(query, -1)

    def record(self, query: str, batch: int) -> None:
        """Record that batch `batch` of a query is complete.

        Spark may make this call after the thread that waited for the batch has continued.
        """
        with self._lock:
            self._last[query] = max(batch, self._last.get(query, -1))
            self._last.move_to_end(query)
            if len(self._last) > _MAX_QUERIES:
                self._last.popitem(last=False)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event of a started query."""
        _log.info("query %s is started", event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event after each batch."""
        progress = event.progress
        self.record(str(progress.id), progress.batchId)
        _log.info("query %s: batch %d took %d ms", progress.id, progress.batchId, progress.batchDuration)

    def onQueryIdle(self, _: object) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event of a query that has no new data."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Handle Spark's event of a terminated query.

        Spark raises a query's error in the thread that waits for the query. The termination of a stopped query has no
        error.
        """
        _log.info("query %s has ended: %s", event.id, event.exception or "it was stopped, or has read all")
