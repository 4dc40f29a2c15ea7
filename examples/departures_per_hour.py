"""Departures of each hour by Spark, from one topic into another one. Each hour is written once, however often it ends.

It prints:
    first run: 8 hours written, no lag
    second run: 24 hours written, no lag
    departures in them: 720 of 750, each once
"""

import json
import tempfile
from collections import Counter

from raymq import cluster
from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.spark_bridge import SparkBridge


def depart(mq: Connection, hours: range) -> None:
    """Send the departures of these hours, as seconds since the epoch, one every two minutes."""
    seconds = [hour * 3_600 + minute * 60 for hour in hours for minute in range(0, 60, 2)]
    with Producer(mq, group="airport") as producer:
        producer.send_batch([Message("departures", json.dumps({"at": at}).encode()) for at in seconds])


def count(bridge: SparkBridge, checkpoint: str) -> None:
    """Read what has come since the last run; hours that the watermark has left behind are complete, and written."""
    stream = bridge.stream("departures", query="per-hour", start="earliest", schema="at TIMESTAMP")
    hours = stream.withWatermark("at", "1 minute").selectExpr("window(at, '1 hour') AS hour").groupBy("hour").count()
    rows = hours.selectExpr("to_json(struct(cast(hour.start AS LONG) AS hour, count)) AS value")
    writer = rows.writeStream.outputMode("append").foreachBatch(bridge.sink("per_hour"))
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    bridge.run_available_now(writer.start)


def written(mq: Connection) -> Counter[int]:
    """The departures of each hour, as any consumer reads them."""
    found: Counter[int] = Counter()
    with PullConsumer(mq, group="board") as consumer:
        for queue in consumer.queues("per_hour"):
            consumer.seek(queue, "earliest")
            for message in consumer.poll(queue, 100, timeout=0.1):
                row = json.loads(message.body)
                found[row["hour"]] += row["count"]
    return found


def main(mq: Connection, bridge: SparkBridge, checkpoint: str) -> None:
    """Run against any cluster that reaches Ray."""
    for topic in ("departures", "per_hour"):
        Admin(mq).create_topic(topic, queues=2)
    for name, hours in (("first", range(9)), ("second", range(9, 25))):
        depart(mq, hours)
        count(bridge, checkpoint)
        lag = sum(queue.lag for queue in bridge.progress("per-hour").values())
        print(f"{name} run: {len(written(mq))} hours written, {lag or 'no'} lag")
    print(f"departures in them: {sum(written(mq).values())} of {25 * 30}, each once")


if __name__ == "__main__":
    with cluster.start(brokers=2) as local, SparkBridge(local) as spark, tempfile.TemporaryDirectory() as folder:
        main(local, spark, folder)
