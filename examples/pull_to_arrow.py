"""Reading a topic in columns, at one's own pace: no Python step per message.

It prints:
    rows: 1000
    mean: 499.5
    goes on at: 1000
"""

import pyarrow as pa
import pyarrow.compute as pc

from raymq import cluster
from raymq.client import Admin, Connection, Producer, PullConsumer


def main(mq: Connection) -> None:
    """Run against any cluster."""
    Admin(mq).create_topic("readings", queues=1)
    readings = pa.table({"payload": [str(number) for number in range(1_000)]})
    with Producer(mq, group="sensor") as producer, PullConsumer(mq, group="report") as consumer:
        producer.send_table("readings", readings, body="payload")
        parts = []
        for queue in consumer.queues("readings"):
            while len(part := consumer.fetch_table(queue, max_messages=400, timeout=0.2)):
                parts.append(part)
            consumer.commit(queue, consumer.position(queue))
        table = pa.concat_tables(parts)
        print("rows:", table.num_rows)
        print("mean:", pc.mean(table["body"].cast(pa.string()).cast(pa.int64())).as_py())
        print("goes on at:", sum(consumer.committed(queue) or 0 for queue in consumer.queues("readings")))


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
