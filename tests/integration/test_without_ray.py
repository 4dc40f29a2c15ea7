"""Test a program that cannot import Ray: it connects by addresses, sends, consumes and administrates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.broker_process import BrokerProcess

PROGRAM = """
import sys, threading
sys.modules["ray"] = None  # from now on `import ray` raises ImportError

from raymq import cluster
from raymq.client import Admin, Message, Producer, PullConsumer, PushConsumer, SimpleConsumer

with cluster.connect(name_servers=sys.argv[1]) as mq:
    admin = Admin(mq)
    admin.create_topic("t", queues=1)
    admin.update_topic("t", ordered=True)
    with Producer(mq, "p") as producer:
        sent = producer.send(Message("t", b"one"))
        producer.send(Message("t", b"two"))
    got, both = [], threading.Event()

    def listen(messages):
        got.extend(message.body for message in messages)
        if len(got) == 2:
            both.set()

    with PushConsumer(mq, "pushed", {"t": "*"}, listen) as consumer:
        consumer.start()
        assert both.wait(60), got
    assert sorted(got) == [b"one", b"two"]
    with SimpleConsumer(mq, "popped", {"t": "*"}) as consumer:
        consumer.ack(consumer.receive(1, await_duration=20.0))
    with PullConsumer(mq, "pulled") as consumer:
        (queue,) = consumer.queues("t")
        consumer.seek(queue, 0)
        assert [message.body for message in consumer.poll(queue)] == [b"one", b"two"]
        consumer.commit(queue, 2)
    assert admin.query_by_id(sent.message_id).body == b"one"
    assert "t" in admin.topics()
    assert {"pushed", "popped", "pulled"} <= set(admin.groups())
    assert sum(each.max_offset for each in admin.topic_stats("t").values()) == 2
    assert len(admin.cluster_info().brokers) == 1
    admin.delete_topic("t")
assert sys.modules["ray"] is None and not any(name.startswith("ray.") for name in sys.modules)
print("done")
"""


def test_clients_work_where_ray_cannot_be_imported(tmp_path: Path) -> None:
    broker = BrokerProcess("broker-a", tmp_path)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.name_server],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (ended.returncode, ended.stdout.strip()) == (0, "done"), ended.stderr
    finally:
        broker.stop()
