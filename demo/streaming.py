"""The demo's stream: the topic once more, in batches of a limited size, each row counted once by Spark's own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raymq.demo.messaging import ROW
from raymq.spark_bridge import SparkBridge

#: The topic is read in so many batches, and one more where that does not come out even.
_BATCHES = 2


def stream_rows(bridge: SparkBridge, topic: str, messages: int, directory: Path) -> tuple[int, int]:
    """Read what is in `topic`, which has about so many messages: its distinct rows, and in how many batches."""
    counted: dict[int, int] = {}

    def count(batch: Any, number: int) -> None:
        counted[number] = batch.count()  # of a batch that is run again the last time counts

    limit = max(1, messages // _BATCHES)
    events = bridge.stream(topic, "demo", "earliest", max_offsets_per_batch=limit, columns=["properties"])
    rows = events.selectExpr(f"properties['{ROW}'] as row").dropDuplicates()
    writer = rows.writeStream.foreachBatch(count).option("checkpointLocation", str(directory))

    bridge.run_available_now(writer.trigger(availableNow=True).start)
    return sum(counted.values()), len(counted)
