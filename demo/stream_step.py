"""Read the demo's topic as a stream.

The batches have a limited size, and Spark's state counts each row once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raymq.demo.demo_messaging import ROW
from raymq.spark_bridge import SparkBridge

#: The number of batches, plus one more if the messages do not divide evenly.
_BATCHES = 2


def stream_rows(bridge: SparkBridge, topic: str, messages: int, directory: Path) -> tuple[int, int]:
    """Read `topic` as a stream; return its distinct rows and the number of batches.

    `messages` is the approximate number of messages in the topic.
    """
    counted: dict[int, int] = {}

    def count(batch: Any, number: int) -> None:
        counted[number] = batch.count()  # If a batch is run again, the last count is used.

    limit = max(1, messages // _BATCHES)
    events = bridge.stream(topic, "demo", "earliest", max_offsets_per_batch=limit, columns=["properties"])
    rows = events.selectExpr(f"properties['{ROW}'] as row").dropDuplicates()
    writer = rows.writeStream.foreachBatch(count).option("checkpointLocation", str(directory))

    bridge.run_available_now(writer.trigger(availableNow=True).start)
    return sum(counted.values()), len(counted)
