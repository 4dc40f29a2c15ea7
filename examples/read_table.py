"""A topic as an Arrow table: for pandas, polars, DuckDB or Ray Data, and without a consumer group.

It prints:
    rows: 1000
    mean: 499.5
    newest: 999
"""

import pyarrow as pa
import pyarrow.compute as pc

from raymq import cluster
from raymq.client import Admin, Connection, Producer


def main(mq: Connection) -> None:
    """Run against any cluster."""
    admin = Admin(mq)
    admin.create_topic("samples", queues=1)
    samples = pa.table({"payload": [str(number) for number in range(1_000)]})
    with Producer(mq, group="sensor") as producer:
        producer.send_table("samples", samples, body="payload")

    table = admin.read_table("samples", start="earliest", columns=["store_timestamp", "body"])
    values = table["body"].cast(pa.string()).cast(pa.int64())
    print("rows:", table.num_rows)
    print("mean:", pc.mean(values).as_py())
    print("newest:", pc.max(values).as_py())


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
