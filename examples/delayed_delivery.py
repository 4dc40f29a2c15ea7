"""Messages for a later time: one comes when it is due, one is called back before.

It prints:
    called back: WITHDRAWN
    b'wake up', not early
    called back: DELIVERED
"""

import threading
import time

from raymq import cluster
from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage


def main(mq: Connection) -> None:
    """Run against any cluster."""
    Admin(mq).create_topic("reminders", queues=1)
    arrived = threading.Event()
    due = 0.0

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        for message in messages:
            print(f"{message.body!r}, {'not early' if message.store_timestamp >= due else 'early'}")
        arrived.set()
        return ConsumeResult.SUCCESS

    with (
        Producer(mq, group="clock") as producer,
        PushConsumer(mq, group="sleepers", subscriptions={"reminders": "*"}, listener=listener),
    ):
        due = round(time.time() + 1.5, 3)
        wake_up = producer.send(Message("reminders", b"wake up", deliver_at=due))
        too_early = producer.send(Message("reminders", b"get up", deliver_at=due))
        print("called back:", producer.recall(too_early).name)
        arrived.wait(10)
        print("called back:", producer.recall(wake_up).name)


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
