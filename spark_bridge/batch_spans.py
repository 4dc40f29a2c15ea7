"""Make one span per batch of Spark.

Of a write, a read, and a micro-batch of a stream. All of it runs on the driver.

A micro-batch's span is made when Spark reports its end. It has links to the spans of the sinks that wrote the batch,
whose contexts the written rows carry.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from raymq.client.connection import Connection
from raymq.spark_bridge.offset_ranges import OffsetRange
from raymq.storage.records.record import encode_properties

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from raymq.client.tracing.message_tracer import MessageTracer

_QUERY: Final = "raymq.spark.query"
_BATCH: Final = "raymq.spark.batch"
#: The number of batches whose sinks' spans are kept.
_MAX_BATCHES: Final = 100
#: How Spark describes the source that streams of a bridge are made of.
_OWN_SOURCE: Final = "RatePerMicroBatch"


@dataclass(slots=True)
class WriteSpan:
    """The span of one write.

    Attributes:
        common: the trace context as properties that each row gets, encoded; empty if nothing is traced.
        rows: the number of written rows, set by the writer.
    """

    common: bytes = b""
    rows: int = 0


@dataclass(slots=True)
class _SinkSpans:
    """The contexts of the spans of sinks, by query and batch.

    Any thread may use it.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _carriers: OrderedDict[tuple[str, int], list[dict[str, str]]] = field(default_factory=OrderedDict)

    def add(self, query: str, batch: int, carrier: dict[str, str]) -> None:
        with self._lock:
            self._carriers.setdefault((query, batch), []).append(carrier)
            if len(self._carriers) > _MAX_BATCHES:
                self._carriers.popitem(last=False)

    def take(self, query: str, batch: int) -> list[dict[str, str]]:
        with self._lock:
            return self._carriers.pop((query, batch), [])


_of_sinks: Final = _SinkSpans()


@contextmanager
def write_span(mq: Connection, topic: str, query: str | None = None, batch: int = 0) -> Iterator[WriteSpan]:
    """Make a span of a write within the block, if the connection traces.

    Args:
        query, batch: Spark's id of the query, and the number of its batch, of a sink's write.
    """
    if mq.tracer is None:
        yield WriteSpan()
        return
    with mq.tracer.sending_rows(topic, None, None if query is None else {_QUERY: query, _BATCH: batch}) as span:
        written = WriteSpan(encode_properties(span.carrier))
        if query is not None:
            _of_sinks.add(query, batch, span.carrier)
        yield written
        span.rows(written.rows)


def record_read(mq: Connection, topics: Sequence[str], ranges: Sequence[OffsetRange], began_ns: int) -> None:
    """Record that a bounded read was planned, if the connection traces.

    Its planning began at `began_ns`.
    """
    if mq.tracer is not None:
        mq.tracer.planned_read(topics, sum(each.end - each.start for each in ranges), began_ns)


def record_micro_batch(tracer: MessageTracer | None, progress: StreamingQueryProgress) -> None:
    """Record that a micro-batch of a stream has ended, if the connection traces."""
    if tracer is None or not any(_OWN_SOURCE in source.description for source in progress.sources):
        return
    query, batch = str(progress.id), progress.batchId
    began_ns = int(datetime.fromisoformat(progress.timestamp).timestamp() * 1_000) * 1_000_000
    tracer.ran_batch(
        progress.name or query,
        {_QUERY: query, _BATCH: batch},
        (began_ns, began_ns + progress.batchDuration * 1_000_000),
        _of_sinks.take(query, batch),
    )
